"""Figures against the numbers of the run they were made of."""

import re

import numpy as np
import pytest
from run_folders import diagnostics_of, make_concept_run, make_run, summary_of

from fcl_flower.results.report.charts import Series, line_chart
from fcl_flower.results.report.comparison import comparison_charts
from fcl_flower.results.report.run_page import run_charts

pytest.importorskip("matplotlib", reason="of the extra figures")
from fcl_flower.exports.figures import draw, write_figures

MATRIX = "Accuracy on every task after every task, mean over 3 clients"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return make_run(folder / "run", attention=True, overlap=True)


def mean_accuracy(run):
    """Return the mean over clients, whose tasks are all measured or none is."""
    return np.array(summary_of(run)["client_accuracy"], float).mean(0)


def axes_of(charts, what):
    (chart,) = (one for one in charts if one.what == what)
    return draw(chart).axes[0]


def test_a_line_is_the_accuracy_of_its_task(run):
    axes = axes_of(run_charts(run), "Accuracy of every task over time")
    mean = mean_accuracy(run)

    assert axes.get_xlabel() == "task learned last"
    assert axes.get_ylabel() == "test accuracy"
    for task, line in enumerate(axes.lines):
        assert line.get_label() == f"task {task}: {mean[-1, task]:.3f}"
        drawn = line.get_ydata()
        np.testing.assert_allclose(drawn[~np.isnan(drawn)], mean[task:, task])
    assert len(axes.get_legend().get_texts()) == 3


def test_cells_are_the_matrix_with_its_numbers_pale_on_dark(run):
    axes = axes_of(run_charts(run), MATRIX)
    mean = mean_accuracy(run)

    (picture,) = axes.images
    np.testing.assert_allclose(picture.get_array().filled(np.nan), mean)
    texts = {t.get_position(): t.get_text() for t in axes.texts}
    assert texts == {
        (i, t): f"{mean[t, i]:.3f}" for t in range(3) for i in range(t + 1)
    }
    assert axes.get_ylim() == (2.5, -0.5)
    assert len(axes.figure.axes) == 2  # the scale of colours
    middle = sum(picture.get_clim()) / 2
    for text in axes.texts:
        value = float(text.get_text())
        if abs(value - middle) > 1e-3:
            assert (text.get_color() == "#ffffff") is (value > middle)


def test_a_curve_of_a_comparison_has_a_band_and_is_dashed_without_federation(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / f"with{seed}", seed=seed)
        make_run(tmp_path / f"alone{seed}", seed=seed, local_only=True)
    charts = comparison_charts(sorted(tmp_path.iterdir()))
    curves = axes_of(charts, "Average accuracy of every method")
    dashed = {line.get_label().split(":")[0]: line.is_dashed() for line in curves.lines}
    assert dashed == {"fedweit": False, "fedweit local-only": True}
    ends = [summary_of(tmp_path / f"with{s}")["average_accuracy"] for s in (1, 2)]
    line = next(one for one in curves.lines if not one.is_dashed())
    assert line.get_ydata()[-1] == pytest.approx(np.mean(ends))
    bands = [one.get_paths()[0].vertices for one in curves.collections]
    assert len(bands) == 2
    heights = [np.ptp([y for x, y in band if x == 2]) for band in bands]
    assert pytest.approx(2 * np.std(ends, ddof=1)) in heights


def test_clusters_are_numbered_points_on_one_scale(tmp_path):
    run = make_concept_run(tmp_path / "run")
    axes = axes_of(run_charts(run), "Map of the client models of round 8")
    last = diagnostics_of(run)["map"]["frames"][-1]

    drawn = [tuple(p) for line in axes.lines for p in line.get_xydata().tolist()]
    assert sorted(drawn) == sorted(map(tuple, last["map"]))
    assert sorted(t.get_text() for t in axes.texts) == sorted(map(str, last["concept"]))
    assert axes.get_aspect() == 1.0
    assert axes.get_title().startswith("round 8")


def test_every_chart_of_a_page_is_a_file_and_the_same_run_gives_the_same_bytes(
    run, tmp_path
):
    charts = run_charts(run)

    first = write_figures(charts, tmp_path / "a", "svg")
    again = write_figures(charts[:2], tmp_path / "b", "svg")
    pdf = write_figures(charts[:1], tmp_path / "c", "pdf")

    assert len(first) == len(charts) == len({path.name for path in first})
    assert first[0].name == "01-accuracy-of-every-task-over-time.svg"
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in first[:2]]
    assert "task learned last</text>" in first[0].read_text()
    assert "http://www.w3.org" in first[0].read_text()
    assert not re.search(r"(href|src)=.https?:", first[0].read_text())
    assert pdf[0].read_bytes().startswith(b"%PDF")


def test_a_name_is_text_whatever_is_in_it(tmp_path):
    name = r"<b>$\frac</b> & $"
    line = Series(name, [0, 1], np.array([0.5, np.nan]), "var(--c0)")
    chart = line_chart("../it/is what", "task", [line], "$")

    (path,) = write_figures([chart], tmp_path, "svg")

    assert path.parent == tmp_path
    assert path.name == "01-it-is-what.svg"
    shown = path.read_text().replace("&lt;", "<").replace("&gt;", ">")
    assert f"{name.replace('&', '&amp;')}: 0.500</text>" in shown
