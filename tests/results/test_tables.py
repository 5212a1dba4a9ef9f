"""What tables, sheets and pages say of several runs."""

import numpy as np
import pytest
from pages import head_of, parsed, table_of, words
from run_folders import edit, make_run, summary_of

import fcl_flower as fcl
from fcl_flower.exports.latex import latex
from fcl_flower.exports.sheets import methods_sheet, run_sheets
from fcl_flower.results import tables
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.result import Result

# ---- costs


def test_tables_sheets_and_pages_show_what_is_known(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    other = make_run(tmp_path / "other", label="other")
    for run, count in zip(runs, (1e12, 3e12), strict=True):
        edit(run, "summary.json", peak_memory=5 * 10**8, multiply_adds=int(count))
    folders = [*runs, other]
    summaries = [summary_of(run) for run in folders]
    results = [Result(run, None, summary_of(run)) for run in folders]

    page = words(parsed(write_report(runs[0])))
    comparison = parsed(write_comparison(tmp_path / "out", folders))
    first, second = tables.rows(summaries)
    methods = methods_sheet(results)
    sheets = {one.name: one for one in run_sheets(results)}

    for shown in ("Peak memory", "500 MB", "Multiply-adds", "1e+12"):
        assert shown in page
    head = head_of(comparison, "methods")
    (known, unknown) = table_of(comparison, "methods")
    for title, value in (("peak memory", "500 MB"), ("multiply-adds", "2e+12")):
        assert known[head.index(title)] == value
        assert unknown[head.index(title)] == wording.UNKNOWN
    assert (first["multiply_adds"], second["multiply_adds"]) == (2e12, None)
    column = methods.columns.index("peak_memory")
    assert [row[column] for row in methods.rows] == [5e8, None]
    column = sheets["runs"].columns.index("multiply_adds")
    assert [row[column] for row in sheets["runs"].rows] == [10**12, 3 * 10**12, None]


def test_of_earlier_runs_nothing_is_said(tmp_path):
    run = make_run(tmp_path / "run")
    head = head_of(parsed(write_comparison(tmp_path / "out", [run])), "methods")
    assert not {"peak memory", "multiply-adds"} & {*head}
    assert "Peak memory" not in words(parsed(write_report(run)))


# ---- forward transfer


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


def test_forward_transfer_is_told_of_the_seed_that_both_have(
    tmp_path,
):
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
