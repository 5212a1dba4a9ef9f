"""What tables, sheets and pages say of several runs."""

import pytest
from pages import head_of, parsed, table_of, words
from run_folders import edit, make_run, summary_of

import fcl_flower as fcl
from fcl_flower.exports.sheets import latex, methods_sheet, run_sheets
from fcl_flower.results import tables
from fcl_flower.results.record import read
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.tables import rows, table

# ---- costs


def test_tables_sheets_and_pages_show_what_is_known(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    other = make_run(tmp_path / "other", label="other")
    for run, count in zip(runs, (1e12, 3e12), strict=True):
        edit(run, "summary.json", peak_memory=5 * 10**8, multiply_adds=int(count))
    folders = [*runs, other]
    summaries = [summary_of(run) for run in folders]

    page = words(parsed(write_report(runs[0])))
    comparison = parsed(write_comparison(tmp_path / "out", folders))
    first, second = tables.rows(summaries)
    records = [read(folder) for folder in folders]
    methods = methods_sheet(records)
    sheets = {sheet.name: sheet for sheet in run_sheets(records)}

    for shown in ("Peak memory", "500 MB", "Multiply-adds", "1e+12"):
        assert shown in page
    assert "Peak memory" not in words(parsed(write_report(other)))
    head = head_of(comparison, "methods")
    (known, unknown) = table_of(comparison, "methods")
    for title, value in (("peak memory", "500 MB"), ("multiply-adds", "2e+12")):
        assert known[head.index(title)] == value
        assert unknown[head.index(title)] == wording.UNKNOWN
    assert (first["multiply_adds"], second["multiply_adds"]) == (2e12, None)
    assert [row.get("peak_memory") for row in methods.rows] == [5e8, None]
    counted = [row.get("multiply_adds") for row in sheets["runs"].rows]
    assert counted == [10**12, 3 * 10**12, None]


# ---- forward transfer


def three_runs(folder, **single):
    """Make two runs of one method and one of single tasks, beside the first."""
    runs = [make_run(folder / f"m{seed}", seed=seed, gain=0.1) for seed in (1, 2)]
    runs.append(make_run(folder / "alone", strategy="stl", seed=1))
    edit(runs[-1], "summary.json", **{"single_task": True, **single})
    return runs


def test_forward_transfer_is_told_of_the_seed_that_both_have(tmp_path):
    runs = three_runs(tmp_path)
    summaries = [summary_of(run) for run in runs]
    a, b = (summaries[i]["client_accuracy"] for i in (0, 2))
    gains = [a[c][i][i] - b[c][i][i] for c in range(3) for i in (1, 2)]
    expected = sum(gains) / len(gains)

    row, alone = tables.rows(summaries)
    sheet = methods_sheet([read(run) for run in runs])
    page = parsed(write_comparison(tmp_path / "out", runs))

    assert row["forward_transfer"]["mean"] == pytest.approx(expected)
    assert row["forward_transfer"]["deviation"] is None
    assert alone["forward_transfer"] is None
    text = tables.table(summaries)
    assert f" | {expected:+.3f} |" in text.splitlines()[2]
    assert "Forward transfer: accuracy on a task just after it was learned" in text
    means = [row["forward_transfer_mean"] for row in sheet.rows]
    assert means == [pytest.approx(expected), None]
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
    assert {row["forward_transfer"] for row in tables.rows(summaries)} == {None}
    assert "orward transfer" not in tables.table(summaries)
    page = parsed(write_comparison(tmp_path / "out", runs))
    assert "forward transfer" not in head_of(page, "methods")


def test_of_two_runs_of_single_tasks_neither_is_chosen(tmp_path):
    summaries = [summary_of(run) for run in three_runs(tmp_path)]
    summaries.append(summaries[-1] | {"label": "other"})
    assert {row["forward_transfer"] for row in tables.rows(summaries)} == {None}


@pytest.mark.run
def test_runs_of_single_tasks_say_that_they_are(tmp_path):
    size = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 1, "seeds": [1]}
    size |= {"counterparts": False, "progress": False, "output": tmp_path / "out"}
    both = fcl.compare(["fedavg", "stl"], **size)
    fedavg, stl = both.results
    assert stl.summary["single_task"]
    assert not fedavg.summary["single_task"]
    gain = (fedavg.accuracy - stl.accuracy)[:, 1, 1].mean()
    told = both.table()[0]["forward_transfer"]["mean"]
    assert told == pytest.approx(gain)


# ---- rows and tables, of summaries by hand


def summary(label, seed, accuracy, *, twin=None, clients=(), **values):
    """Make a summary of which only the given values matter."""
    return {
        "label": label,
        "counterpart": twin,
        "seed": seed,
        "average_accuracy": accuracy,
        "forgetting": 0.1,
        "backward_transfer": -0.1,
        "bytes_up": 3_000_000,
        "bytes_down": 5_000_000,
        "nominal_bytes_up": 1_000_000,
        "nominal_bytes_down": 2_000_000,
        "model_bytes": 400_000,
        "seconds": 2.0,
        "client_accuracy": clients,
        **values,
    }


def test_rows_hold_mean_and_deviation_over_seeds():
    runs = [
        summary("a", 0, 0.5, forgetting=0.1, bytes_up=100, seconds=1.0),
        summary("a", 2, 0.7, forgetting=0.3, bytes_up=300, seconds=4.0),
        summary("a", 1, 0.6, forgetting=0.2, bytes_up=500, seconds=1.0),
    ]
    (row,) = rows(runs)
    assert (row["label"], row["seeds"]) == ("a", [0, 1, 2])
    assert row["average_accuracy"] == pytest.approx({"mean": 0.6, "deviation": 0.1})
    assert row["forgetting"] == pytest.approx({"mean": 0.2, "deviation": 0.1})
    assert (row["bytes_up"], row["seconds"]) == (300, 2.0)
    assert row["transfer_gain"] is None
    assert "| a | 0, 1, 2 | 0.600 ± 0.100 | 0.200 ± 0.100 |  |" in table(runs)
    (row,) = rows(runs[:1])
    assert row["average_accuracy"] == {"mean": 0.5, "deviation": None}


def test_the_gain_is_paired_by_seed():
    def clients(*finals):
        return [[[0.9, None], list(final)] for final in finals]

    found = rows(
        [
            summary("f", 0, 0.7, twin="i", clients=clients((0.6, 0.8), (0.7, 0.7))),
            summary("i", 0, 0.6, clients=clients((0.5, 0.8), (0.4, 0.7))),
            summary("f", 1, 0.6, twin="i", clients=clients((0.5, 0.7), (0.5, 0.7))),
            summary("i", 1, 0.3, clients=clients((0.3, 0.3), (0.3, 0.3))),
            summary("f", 2, 0.9, twin="i", clients=clients((1, 1), (1, 1))),  # no pair
        ]
    )
    # Seed 0: +0.1, seed 1: +0.3; deviation of two values: their difference / sqrt 2.
    gain = {"mean": 0.2, "deviation": 0.2 / 2**0.5}
    assert found[0]["transfer_gain"] == pytest.approx(gain)
    assert found[1]["transfer_gain"] is None


def test_what_was_not_measured_is_left_out():
    unknown = [[[None, None], [None, None]]]
    found = rows(
        [
            summary("f", 0, None, twin="i", clients=unknown, forgetting=None),
            summary("i", 0, 0.6, clients=unknown),
            summary("f", 1, 0.8, twin="i", clients=[[[0.5, None], [0.9, None]]]),
            summary("i", 1, 0.5, clients=[[[0.5, None], [0.5, None]]]),
        ]
    )
    assert found[0]["average_accuracy"] == {"mean": 0.8, "deviation": None}
    assert found[0]["transfer_gain"]["mean"] == pytest.approx(0.3)
    nothing = [summary("f", 0, None, forgetting=None, backward_transfer=None)]
    assert rows(nothing)[0]["average_accuracy"] is None
    assert "| f | 0 |  |  |  |" in table(nothing)


def test_static_data_are_not_paired_with_a_stream():
    drift, static = ({"window": 64, "mean_duration": d} for d in (8, 0))
    found = rows(
        [
            summary("f", 0, 0.75, twin="i", hidden=drift, clients=[[[0.75]]]),
            summary("g", 0, 0.95, twin="i", hidden=static, clients=[[[0.95]]]),
            summary("i", 0, 0.5, hidden=drift, clients=[[[0.5]]]),
        ]
    )
    assert found[0]["transfer_gain"]["mean"] == pytest.approx(0.25)
    assert found[1]["transfer_gain"] is None


def test_the_table_by_hand():
    both = {"twin": "i", "clients": [[[0.75]]]}
    text = table(
        [summary("f", 0, 0.75, **both), summary("i", 0, 0.5, clients=[[[0.5]]])]
    )
    first, second = text.splitlines()[2:4]
    sizes = "3.0 MB | 5.0 MB | 1.0 MB | 0.4 MB |"
    assert first == f"| f | 0 | 0.750 | 0.100 | +0.250 | {sizes}"
    assert second == f"| i | 0 | 0.500 | 0.100 |  | {sizes}"


CONCEPTS = {"ari": 0.9, "ari_least": 0.5, "perfect_rounds": 0.8, "effectiveness": 0.95}
INCREMENTAL = {"scenario": "class-incremental"}


@pytest.mark.parametrize(
    ("known", "unknown", "head", "cells"),
    [
        (
            [{"concepts": CONCEPTS}],
            {"concepts": {}},
            "clustering | least clustering | perfect rounds | matching effectiveness",
            "0.900 | 0.500 | 0.800 | 0.950",
        ),
        (
            [
                INCREMENTAL | {"sample_accuracy": s, "average_incremental_accuracy": a}
                for s, a in (([0.9, 0.6], 0.75), ([0.7, 0.4], 0.55))
            ],
            INCREMENTAL | {"sample_accuracy": [0.7, None]},
            "sample accuracy | average incremental accuracy",
            "0.500 ± 0.141 | 0.650 ± 0.141",
        ),
        (
            [{"before_aggregation": {"average_accuracy": 0.25}}],
            {"scenario": "overlapped", "sample_accuracy": [0.9, 0.6]},
            "before aggregation",
            "0.250",
        ),
    ],
)
def test_what_some_runs_know_has_columns_of_its_own(known, unknown, head, cells):
    other = summary("g", 0, 0.5, **unknown)
    runs = [summary("f", seed, 0.5, **one) for seed, one in enumerate(known)]
    first, _, *lines = table([*runs, other]).splitlines()[:4]
    assert f" | {head} | " in first
    assert f" | {cells} | " in lines[0]
    assert cells not in lines[1]
    assert table([other]).splitlines()[0].endswith("| model |")
