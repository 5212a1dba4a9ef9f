"""Forward transfer by hand, in every place that shows it."""

import math

import numpy as np
import pytest
from pages import head_of, parsed, table_of
from run_folders import edit, make_run, summary_of

import fcl_flower as fcl
from fcl_flower.exports.latex import latex
from fcl_flower.exports.sheets import methods_sheet
from fcl_flower.results import tables
from fcl_flower.results.measures.forward_transfer import (
    Learned,
    forward_transfer,
    forward_transfers,
)
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.result import Result

NAN = math.nan

# Client 0 knows tasks 1 and 2 by 0.2 and 0.1 better than alone; client 1 task 1 by 0.4
# worse, and vanished then. The first task has nothing before it.
A = np.array(
    [
        [[0.9, NAN, NAN], [0.1, 0.7, NAN], [0.1, 0.1, 0.6]],
        [[0.9, NAN, NAN], [0.1, 0.2, NAN], [NAN, NAN, NAN]],
    ]
)
B = np.array(
    [
        [[0.4, NAN, NAN], [0.4, 0.5, NAN], [0.4, 0.5, 0.5]],
        [[0.4, NAN, NAN], [0.4, 0.6, NAN], [0.4, 0.6, 0.3]],
    ]
)


def test_forward_transfer_by_hand():
    expected = ((0.2 + 0.1) / 2 - 0.4) / 2
    assert forward_transfer(A, B) == pytest.approx(expected)
    assert forward_transfer(B, A) == pytest.approx(-expected)


def test_nothing_came_before_a_single_task():
    assert math.isnan(forward_transfer(A[:, :1, :1], B[:, :1, :1]))


def test_other_tasks_cannot_be_compared():
    with pytest.raises(ValueError, match=r"accuracy has shape \(2, 3, 3\) and single"):
        forward_transfer(A, B[:, :2, :2])


@pytest.mark.parametrize(
    ("alone", "known"),
    [
        ([Learned("x", True, B)], True),
        ([Learned("y", True, B)], False),  # other data
        ([Learned("x", False, B)], False),
        ([Learned("x", True, B), Learned("x", True, B)], False),  # which of the two?
        ([Learned("x", True, B), Learned("y", True, A)], True),
        ([], False),
    ],
)
def test_a_run_is_held_against_the_one_run_of_its_single_tasks(alone, known):
    found, *others = forward_transfers([Learned("x", False, A), *alone])

    assert found == pytest.approx(forward_transfer(A, B) if known else NAN, nan_ok=True)
    assert all(map(math.isnan, others[: len(alone)]))


def three_runs(folder, **single):
    """Return two runs of one method and one of single tasks, beside the first."""
    runs = [make_run(folder / f"m{seed}", seed=seed, gain=0.1) for seed in (1, 2)]
    runs.append(make_run(folder / "alone", strategy="stl", seed=1))
    edit(runs[-1], "summary.json", **{"single_task": True, **single})
    return runs


def worked_out(run, alone):
    """Return the mean over clients and all tasks but the first, by loops."""
    a, b = (summary_of(folder)["client_accuracy"] for folder in (run, alone))
    gains = [a[c][i][i] - b[c][i][i] for c in range(3) for i in (1, 2)]
    return sum(gains) / len(gains)


def test_tables_sheets_and_pages_tell_it_of_the_seed_that_both_have(tmp_path):
    runs = three_runs(tmp_path)
    expected = worked_out(runs[0], runs[-1])
    summaries = [summary_of(run) for run in runs]

    row, alone = tables.rows(summaries)
    sheet = methods_sheet([given(summary) for summary in summaries])
    page = parsed(write_comparison(tmp_path / "out", runs))

    assert row["forward_transfer"]["mean"] == pytest.approx(expected)
    assert row["forward_transfer"]["deviation"] is None
    assert alone["forward_transfer"] is None
    text = tables.table(summaries)
    assert f" | {expected:+.3f} |" in text.splitlines()[2]
    assert "Forward transfer: accuracy on a task just after it was learned" in text
    place = sheet.columns.index("forward_transfer_mean")
    assert [line[place] for line in sheet.rows] == [pytest.approx(expected), None]
    assert f"& ${expected:.3f}$ &" in latex(sheet)
    column = head_of(page, "methods").index("forward transfer")
    assert table_of(page, "methods")[0][column] == f"+{expected:.3f}"


@pytest.mark.parametrize(
    "changed",
    [
        {"single_task": False},
        {"seed": 3},
        {"model": "resnet18"},
        {"hidden": {"window": 1, "mean_duration": 1}},
    ],
)
def test_without_such_a_run_nothing_is_told_of_it(tmp_path, changed):
    runs = three_runs(tmp_path, **changed)
    summaries = [summary_of(run) for run in runs]

    page = parsed(write_comparison(tmp_path / "out", runs))

    assert [row["forward_transfer"] for row in tables.rows(summaries)] == [None, None]
    assert "orward transfer" not in tables.table(summaries)
    assert "forward transfer" not in head_of(page, "methods")


def test_runs_of_single_tasks_say_that_they_are(tmp_path):
    size = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 1}
    both = fcl.compare(
        ["fedavg", "stl"],
        seeds=[1],
        **size,
        counterparts=False,
        progress=False,
        output=tmp_path / "out",
    )
    fedavg, stl = both.results

    assert stl.summary["single_task"]
    assert not fedavg.summary["single_task"]
    found = np.diagonal(fedavg.accuracy, axis1=1, axis2=2)[:, 1]
    alone = np.diagonal(stl.accuracy, axis1=1, axis2=2)[:, 1]
    told = both.table()[0]["forward_transfer"]["mean"]
    assert told == pytest.approx((found - alone).mean())


def given(summary):
    return Result(None, None, summary)
