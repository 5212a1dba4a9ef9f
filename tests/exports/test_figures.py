"""Figures against the numbers of the run they were made of."""

import json
import re

import numpy as np
import pytest
from run_folders import make_concept_run, make_run, summary_of

from fcl_flower.results.report import comparison_charts, run_charts
from fcl_flower.results.report.html.content import Chart, Table

NUMBERS = Table(["x"], [])


pytest.importorskip("matplotlib", reason="of the extra figures")
from fcl_flower.exports.figures import draw, write_figures  # noqa: E402


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


def lines_of(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines}


def test_a_line_is_the_accuracy_of_its_task(run):
    axes = axes_of(run_charts(run), "Accuracy of every task over time")
    mean = mean_accuracy(run)

    lines = lines_of(axes)
    assert axes.get_xlabel() == "task learned last"
    assert axes.get_ylabel() == "test accuracy"
    assert [*axes.get_xticks()] == [0, 1, 2]
    for task, (name, drawn) in enumerate(lines.items()):
        assert name == f"task {task}: {mean[-1, task]:.3f}"
        np.testing.assert_allclose(drawn[~np.isnan(drawn)], mean[task:, task])
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [*lines]


def test_columns_are_bytes_on_top_of_each_other(run):
    axes = axes_of(run_charts(run), "Bytes up in each round")
    rounds = [*map(json.loads, (run / "rounds.jsonl").read_text().splitlines())]

    tops = np.zeros(len(rounds))
    for column in axes.patches:
        where = round(column.get_x() + column.get_width() / 2) - 1
        if column.get_width() == 0.8 and column.get_height():
            assert column.get_y() == pytest.approx(tops[where])
            tops[where] += column.get_height()
    np.testing.assert_allclose(tops, [sum(r["bytes_up"].values()) for r in rounds])
    assert axes.get_xlim() == (0.5, len(rounds) + 0.5)
    assert axes.yaxis.get_major_formatter()(2e6).endswith("MB")


def test_cells_are_the_matrix_with_its_numbers(run):
    what = "Accuracy on every task after every task, mean over 3 clients"
    axes = axes_of(run_charts(run), what)
    mean = mean_accuracy(run)

    (picture,) = axes.images
    np.testing.assert_allclose(picture.get_array().filled(np.nan), mean)
    texts = {t.get_position(): t.get_text() for t in axes.texts}
    assert texts == {
        (i, t): f"{mean[t, i]:.3f}" for t in range(3) for i in range(t + 1)
    }
    assert axes.get_ylim() == (2.5, -0.5)
    assert len(axes.figure.axes) == 2  # the scale of colours


def test_dark_cells_have_pale_numbers(run):
    what = "Accuracy on every task after every task, mean over 3 clients"
    axes = axes_of(run_charts(run), what)
    (picture,) = axes.images
    low, high = picture.get_clim()

    for text in axes.texts:
        value = float(text.get_text())
        if abs(value - (low + high) / 2) > 1e-3:
            assert (text.get_color() == "#ffffff") is (value > (low + high) / 2)


def test_bars_and_whiskers_of_a_comparison_are_the_gain_and_its_deviation(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path / f"with{seed}", seed=seed)
        make_run(tmp_path / f"alone{seed}", seed=seed, local_only=True)
    folders = sorted(tmp_path.iterdir())
    charts = comparison_charts(folders)
    gains = [
        summary_of(tmp_path / f"with{s}")["average_accuracy"]
        - summary_of(tmp_path / f"alone{s}")["average_accuracy"]
        for s in (1, 2)
    ]

    axes = axes_of(charts, "Transfer gain of every federated method")
    discs = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert discs[0].get_xdata()[0] == pytest.approx(np.mean(gains), abs=1e-9)
    (whisker,) = axes.collections[0].get_segments()
    half = (whisker[1, 0] - whisker[0, 0]) / 2
    assert half == pytest.approx(np.std(gains, ddof=1), abs=1e-9)
    dots = next(line for line in axes.lines if len(line.get_xdata()) == 2)
    assert sorted(dots.get_xdata()) == pytest.approx(sorted(gains))
    assert axes.get_yticklabels()[0].get_text().startswith("fedweit\n")
    per_task = axes_of(charts, "Transfer gain of fedweit per task")
    heights = [bar.get_height() for bar in per_task.patches]
    assert np.mean(heights) == pytest.approx(np.mean(gains))
    labels = [text.get_text() for text in per_task.texts]
    assert labels[0] == f"{heights[0]:+.3f}".replace("-", "\N{MINUS SIGN}")
    curves = axes_of(charts, "Average accuracy of every method")
    dashed = {line.get_label().split(":")[0]: line.is_dashed() for line in curves.lines}
    assert dashed == {"fedweit": False, "fedweit local-only": True}
    assert len(curves.patches) == 2  # a band for each


def test_clusters_are_numbered_points_on_one_scale(tmp_path):
    charts = run_charts(make_concept_run(tmp_path / "run"))
    (chart,) = (c for c in charts if c.what == "Map of the client models of round 8")

    axes = draw(chart).axes[0]
    drawn = {tuple(p) for line in axes.lines for p in line.get_xydata().tolist()}
    told = {tuple(map(float, row[1:])) for row in chart.numbers.rows}
    assert {(float(f"{x:.3g}"), float(f"{y:.3g}")) for x, y in drawn} == told
    assert sorted(t.get_text() for t in axes.texts) == sorted(
        text for one in chart.traces for text in one["text"]
    )
    assert axes.get_aspect() == 1.0
    assert axes.get_title().startswith("round 8")


def test_categories_have_the_colours_of_the_page_and_a_legend(tmp_path):
    charts = run_charts(make_concept_run(tmp_path / "run"))
    what = "Concept model that each concept reached in each round"
    axes = axes_of(charts, what)

    (picture,) = axes.images
    colours = {
        int(v): "#" + "".join(f"{round(255 * part):02x}" for part in rgba[:3])
        for v, rgba in (
            (v, picture.cmap(picture.norm(v))) for v in picture.get_array().compressed()
        )
    }
    page = {0: "#2b6cb0", 1: "#d17a22", 2: "#3a9067", 3: "#8257a5", 4: "#b5485d"}
    assert colours
    assert colours == {key: page[key] for key in colours}
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(legend) == len(colours)


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
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "&lt;b&gt;$\\frac&lt;/b&gt; &amp; $",
    }
    chart = Chart(
        "../it/is what",
        [line | {"x": [0, 1], "y": [0.5, None], "line": {"color": "var(--c0)"}}],
        {"height": 300, "showlegend": True, "xaxis": {}, "yaxis": {}},
        NUMBERS,
    )

    (path,) = write_figures([chart], tmp_path, "svg")

    assert path.parent == tmp_path
    assert path.name == "01-it-is-what.svg"
    shown = path.read_text().replace("&lt;", "<").replace("&gt;", ">")
    assert f"{name.replace('&', '&amp;')}</text>" in shown
