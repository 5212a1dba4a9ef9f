"""Sheets against the files of the runs they were made of."""

import csv
import json
import shutil
import statistics

import numpy as np
import pytest
from run_folders import edit, make_run
from scipy import stats

from fcl_flower.core.errors import ConfigError
from fcl_flower.exports.sheets import (
    METHOD_COLUMNS,
    Sheet,
    adjusted,
    finished_runs,
    latex,
    methods_sheet,
    run_sheets,
    write_csv,
)


@pytest.fixture
def study(tmp_path):
    """Three seeds of two methods, one with its counterpart, and what is no run."""
    for seed in (1, 2, 3):
        make_run(tmp_path / f"a-seed{seed}", seed=seed, label="one, way", gain=0.1)
        alone = tmp_path / f"b-seed{seed}"
        make_run(alone, seed=seed, local_only=True)
        make_run(tmp_path / f"c-seed{seed}", seed=seed, lost=0.3)
    (tmp_path / "notes").mkdir()
    return tmp_path


def rows_of(sheet):
    return [{name: row.get(name) for name in sheet.columns} for row in sheet.rows]


def read(path):
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def test_runs_are_found_in_their_study_or_by_themselves(study):
    alone = [study / "c-seed2", study / "a-seed1"]

    found = [run.folder.name for run in finished_runs([study])]
    assert found == [f"{name}-seed{seed}" for name in "abc" for seed in (1, 2, 3)]
    assert [run.folder for run in finished_runs(alone)] == alone
    with pytest.raises(ConfigError, match=r"^folder: got .*notes', expected that of"):
        finished_runs([study, study / "notes"])


def test_every_accuracy_every_round_and_every_run_is_a_row(study, tmp_path):
    runs = finished_runs([study])
    accuracy, rounds, whole = map(rows_of, run_sheets(runs))
    first = study / "a-seed1"
    summary = json.loads((first / "summary.json").read_text())
    lines = [*map(json.loads, (first / "rounds.jsonl").read_text().splitlines())]
    cells = summary["client_accuracy"]
    here = [row for row in accuracy if (row["label"], row["seed"]) == ("one, way", 1)]

    assert len(here) == sum(v is not None for m in cells for r in m for v in r)
    for row in here:
        value = cells[row["client"]][row["after_task"]][row["task"]]
        assert row["accuracy"] == value
    assert len(rounds) == len(runs) * len(lines)
    assert rounds[1] == {
        "label": "one, way",
        "seed": 1,
        "round": 2,
        "task": lines[1]["task"],
        "clients": len(lines[1]["clients"]),
        "failed": len(lines[1]["failed"]),
        "loss": lines[1]["loss"],
        "valid_loss": None,
        "valid_accuracy": lines[1]["valid_accuracy"],
        "bytes_up": sum(lines[1]["bytes_up"].values()),
        "bytes_down": sum(lines[1]["bytes_down"].values()),
        "seconds": lines[1]["seconds"],
    }
    assert [row["seed"] for row in whole] == [1, 2, 3] * 3
    assert whole[0]["forgetting"] == summary["forgetting"]
    assert whole[0]["bytes_up"] == summary["bytes_up"]


def accuracies(study, name, seeds=(1, 2, 3)):
    paths = (study / f"{name}-seed{seed}" / "summary.json" for seed in seeds)
    return [json.loads(path.read_text())["average_accuracy"] for path in paths]


def test_a_method_has_mean_and_deviation_and_is_tested_against_the_best(study):
    found = rows_of(methods_sheet(finished_runs([study])))
    values = [accuracies(study, name) for name in "abc"]
    best = max(range(3), key=lambda one: statistics.fmean(values[one]))
    tests = [
        stats.ttest_rel(v, values[best]).pvalue for v in values if v != values[best]
    ]

    for row, own in zip(found, values, strict=True):
        assert row["seeds"] == 3
        assert row["average_accuracy_mean"] == pytest.approx(statistics.fmean(own))
        assert row["average_accuracy_deviation"] == pytest.approx(statistics.stdev(own))
    others = [row for row in found if row is not found[best]]
    assert found[best]["reference"] is found[best]["p"] is found[best]["pairs"] is None
    assert {row["reference"] for row in others} == {found[best]["label"]}
    assert [row["p"] for row in others] == pytest.approx(tests)
    assert [row["p_adjusted"] for row in others] == pytest.approx(
        [max(tests) if p == max(tests) else 2 * p for p in tests]
        if 2 * min(tests) <= max(tests)
        else [2 * min(tests)] * 2
    )


def test_intervals_are_over_seeds_and_over_clients_of_all_seeds(study):
    def ends(name, seed):
        summary = json.loads((study / f"{name}-seed{seed}/summary.json").read_text())
        cells = [client[-1] for client in summary["client_accuracy"]]
        return [statistics.fmean(v for v in row if v is not None) for row in cells]

    own, other = (np.array([ends(name, k) for k in (1, 2, 3)]) for name in "ac")
    gains = own - other

    runs = finished_runs([study])
    found, second, third = rows_of(methods_sheet(runs, "fedweit"))
    with pytest.raises(ConfigError, match=r"^reference: got 'fedwei'.*'fedweit'\?$"):
        methods_sheet(runs, "fedwei")

    assert found["reference"] == second["reference"] == "fedweit"
    assert third["reference"] is None
    by_seed = stats.ttest_1samp(gains.mean(1), 0).confidence_interval()
    by_client = stats.ttest_1samp(gains.ravel(), 0).confidence_interval()
    margins = [found["difference_margin"], found["client_margin"]]
    widths = [(one.high - one.low) / 2 for one in (by_seed, by_client)]
    assert margins == pytest.approx(widths)
    assert found["client_difference"] == pytest.approx(gains.mean())
    assert (found["pairs"], found["client_pairs"]) == (3, gains.size)


def test_what_was_not_measured_is_neither_best_nor_tested(study):
    for seed in (1, 2, 3):
        edit(study / f"c-seed{seed}", "summary.json", average_accuracy=None)

    found = rows_of(methods_sheet(finished_runs([study])))

    assert found[2]["average_accuracy_mean"] is found[2]["reference"] is None
    assert {row["reference"] for row in found[:2]} in (
        {None, "one, way"},
        {None, "fedweit local-only"},
    )


def test_a_csv_is_read_as_it_was(study, tmp_path):
    sheet = methods_sheet(finished_runs([study]))

    rows = read(write_csv(sheet, tmp_path))

    for row, wanted in zip(rows, rows_of(sheet), strict=True):
        assert {k: v or None for k, v in row.items()} == {
            k: None if v is None else str(v) for k, v in wanted.items()
        }


def test_parquet_keeps_numbers_words_and_what_is_unknown(study, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="of the extra frames")
    from fcl_flower.exports.sheets import write_parquet

    for sheet in [*run_sheets(finished_runs([study])), Sheet("none", ("a",), ())]:
        table = parquet.read_table(write_parquet(sheet, tmp_path))
        assert table.column_names == [*sheet.columns]
        assert table.to_pylist() == rows_of(sheet)


def test_only_seeds_of_both_methods_are_paired(study):
    for folder in ("a-seed1", "c-seed3"):
        shutil.rmtree(study / folder)

    found, _, third = rows_of(methods_sheet(finished_runs([study]), "fedweit"))

    ((own,), (other,)) = (accuracies(study, name, [2]) for name in "ac")
    assert found["pairs"] == 1
    assert found["difference"] == pytest.approx(own - other)
    assert found["p"] is found["difference_margin"] is third["reference"] is None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 * 0.01, 2 * 0.03, then no less
        ([0.04, None, 0.001], [0.04, None, 0.002]),
        ([0.6, 0.7], [1.0, 1.0]),
        ([], []),
    ],
)
def test_the_more_tests_the_less_each_counts(given, wanted):
    assert adjusted(given) == pytest.approx(wanted)


# ---- the table for a paper

BEST = {
    "label": r"50% & $ # of_it { } ~ ^ \ é",
    "average_accuracy_mean": 0.9125,
    "average_accuracy_deviation": 0.02,
    "forgetting_mean": -0.0001,
}
OTHER = {
    "label": "other",
    "average_accuracy_mean": 0.5,
    "reference": "best\n\\evil",
    "difference": -0.4,
    "p_adjusted": 0.0002,
}


def test_latex_has_what_is_known_the_best_in_bold_and_the_test():
    third = OTHER | {"label": "third", "p_adjusted": 0.25, "difference": 0.0004}
    rows = [BEST, OTHER, third | {"label": "x", "p_adjusted": None}, third]
    lines = latex(Sheet("methods", METHOD_COLUMNS, rows))

    assert lines.splitlines()[1:] == [
        "% Difference of accuracy to best \\evil, seed by seed; p of the two-sided "
        "paired t-test, Holm-adjusted.",
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & accuracy & forgetting & difference & $p$ \\",
        r"\midrule",
        r"50\% \& \$ \# of\_it \{ \} \textasciitilde{} \textasciicircum{} "
        r"\textbackslash{} é & $\mathbf{0.912} \pm 0.020$ & $0.000$ & -- & -- \\",
        r"other & $0.500$ & -- & $-0.400$ & $<0.001$ \\",
        r"x & $0.500$ & -- & $0.000$ & -- \\",
        r"third & $0.500$ & -- & $0.000$ & $0.250$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    alone = latex(Sheet("methods", METHOD_COLUMNS, [BEST])).splitlines()
    assert alone[1] == r"\begin{tabular}{lrr}"
    assert alone[3] == r"method & accuracy & forgetting \\"
