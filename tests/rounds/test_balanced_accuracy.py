"""Balanced accuracy beside accuracy, unasked, where test sets are unbalanced."""

import numpy as np
import pytest
from fakes import run_in_process, summary_of, tiny
from local_runs import config, run
from pages import head_of, parsed, table_of, tiles, verdicts
from plans import write_images

from fcl_flower.exports.sheets import latex, methods_sheet, run_sheets
from fcl_flower.results.record import read
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.tables import text_table

pytestmark = pytest.mark.run


def clouds(folder, counts):
    """Write a task of each client, of two clouds that overlap."""
    places = []
    for client, (common, rare) in enumerate(counts):
        rng = np.random.default_rng(client)
        task = folder / f"data-{client}" / "task-01"
        task.mkdir(parents=True)
        lines = ["x,label,y,z"]
        for label, (count, mean) in enumerate(((common, 0.0), (rare, 0.8))):
            for x, y, z in rng.normal(mean, size=(count, 3)):
                lines.append(f"{x:.3f},{label},{y:.3f},{z:.3f}")
        (task / "train.csv").write_text("\n".join(lines) + "\n")
        places.append({"data-path": str(folder / f"data-{client}")})
    return places


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a run whose second client is unbalanced, and of one of all alike.

    And of the first run again, with counts by class.
    """
    folder = tmp_path_factory.mktemp("clouds")
    skewed = clouds(folder / "skewed", [(30, 30), (90, 15)])
    alike = clouds(folder / "alike", [(30, 30), (40, 30)])
    for name, places, more in (
        ("skewed", skewed, {}),
        ("alike", alike, {"title": "alike"}),
        ("counted", skewed, {"per_class": True}),
    ):
        given = {"strategy": "fedavg", "tasks": 1, "epochs": 5, **more}
        run(config(folder / "runs" / name, **given), places)
    return folder / "runs"


def test_it_is_that_of_counts_by_class(runs):
    found, counted = summary_of(runs / "skewed"), summary_of(runs / "counted")
    assert found["client_accuracy"] == counted["client_accuracy"]
    assert found["balanced_accuracy"] == counted["balanced_accuracy"]
    assert found["balanced_accuracy"] != found["average_accuracy"]
    assert "macro_f1" not in found
    assert "balanced_accuracy" not in summary_of(runs / "alike")


def test_pages_and_tables_have_it_beside_the_accuracy(runs):
    summaries = [summary_of(runs / name) for name in ("skewed", "alike")]
    shown = f"{summaries[0]['balanced_accuracy']:.3f}"

    page = parsed(runs / "skewed" / "report.html")
    assert [*tiles(page)][:2] == ["Average accuracy", "Balanced accuracy"]
    assert tiles(page)["Balanced accuracy"][0] == shown
    assert any("classes count alike" in said for said in verdicts(page))
    other = parsed(runs / "alike" / "report.html")
    assert "Balanced accuracy" not in tiles(other)
    assert not any("count alike" in said for said in verdicts(other))

    both = [runs / "skewed", runs / "alike"]
    comparison = parsed(write_comparison(runs / "both", both))
    column = head_of(comparison, "methods").index("balanced accuracy")
    assert head_of(comparison, "methods")[column - 1] == "average accuracy"
    rows = table_of(comparison, "methods")
    assert [row[column] for row in rows] == [shown, "\N{EN DASH}"]

    summaries = [summary_of(folder) for folder in both]
    table = text_table(summaries)
    assert [*table.head[2:5]] == ["accuracy", "balanced accuracy", "forgetting"]
    assert [line[3] for line in table.lines] == [shown, ""]
    assert "Balanced accuracy: mean over a task's classes" in table.note
    alone = text_table(summaries[1:])
    assert [*alone.head[2:4]] == ["accuracy", "forgetting"]
    assert "Balanced" not in alone.note


def test_exports_have_it(runs):
    records = [read(runs / name) for name in ("skewed", "alike")]
    shown = summary_of(runs / "skewed")["balanced_accuracy"]
    methods = methods_sheet(records)
    assert "accuracy & balanced accuracy & forgetting" in latex(methods)
    assert f"${shown:.3f}$" in latex(methods)
    sheet = {sheet.name: sheet for sheet in run_sheets(records)}["runs"]
    assert [row.get("balanced_accuracy") for row in sheet.rows] == [shown, None]


def told(folder, **given):
    """Return what clients tell of their last tests, by client."""
    found = {}

    def look(client, request, reply):
        if request.kind == "evaluate":
            found[client] = dict(reply.content.scalars["fcl.scores"])
        return reply

    run_in_process(tiny(folder, **given), tamper=look)
    return found


def test_nothing_is_told_where_all_know_that_no_test_set_is_unbalanced(tmp_path):
    labels = [0] * 40 + [1] * 6 + [2] * 20 + [3] * 20
    for name, keys in (("skewed", {"balanced-accuracy"}), ("alike", set())):
        write_images(tmp_path, name, labels if keys else np.arange(80) % 4)
        given = {"strategy": "fedavg", "dataset": name, "data_root": str(tmp_path)}
        found = told(tmp_path / f"run-{name}", **given, model="small")
        usual = {"accuracy", "model-bytes", "inferred"}
        assert [{*row} - usual - {"unbalanced"} for row in found.values()] == [keys] * 2
        # Whatever class is in a task with the rare one, both clients have that task.
        assert all(("unbalanced" in row) is bool(keys) for row in found.values())
        summary = summary_of(tmp_path / f"run-{name}")
        assert ("balanced_accuracy" in summary) is bool(keys)
