"""Charts, the tables of their numbers, and how numbers are said."""

import math

import numpy as np
import pytest

from fcl_flower.results.report import wording
from fcl_flower.results.report.charts import (
    Cells,
    Point,
    PointMap,
    Series,
    escaped,
    line_chart,
    short,
)
from fcl_flower.results.report.page import Section, write_page

EVIL = "</b><b>&#60;%{x}"
NAN = math.nan


def numbers(chart):
    return [[*chart.table.head], *chart.table.rows]


def test_the_table_of_lines_has_a_row_a_place_and_a_column_a_line():
    spread = np.array([0.125, NAN])
    series = [
        Series("a", [1, 3], np.array([0.5, 1.0]), "red", spread),
        Series(EVIL, [1, 2], np.array([NAN, -0.25]), "red"),
    ]
    assert numbers(line_chart("what", "round", series)) == [
        ["round", "a", EVIL],
        ["1", "0.500 ± 0.125", wording.UNKNOWN],
        ["2", wording.UNKNOWN, f"{wording.MINUS}0.250"],
        ["3", "1.000", wording.UNKNOWN],
    ]


def test_a_matrix_has_its_numbers_its_marks_and_gaps():
    cells = np.array([[0.5, NAN], [0.0, 1.0]])
    chart = Cells("what", ("row", "column"), ["a", EVIL], "xy", cells, [(1, 0)])
    heat, marks = chart.plotly()["data"]
    assert numbers(chart) == [
        ["row", "x", "y"],
        ["a", "0.500", ""],
        [EVIL, "0.000", "1.000"],
    ]
    assert heat["z"] == [[0.5, None], [0.0, 1.0]]
    assert "<b>" not in heat["hovertext"][1][0]
    assert (round(marks["y"][0]), round(marks["x"][0])) == (1, 0)
    assert chart.ends == (0.0, 1.0)
    assert Cells("", ("", ""), "a", "b", np.array([[0.5]])).ends == (0.5, 1.5)


def test_points_have_one_scale_for_both_directions():
    chart = PointMap("what", {"none": [Point((0.25, -1.0), "3", -1, EVIL)]}, "caption")
    drawn = chart.plotly()
    assert chart.table.rows == [[EVIL, "0.25", "-1"]]
    assert drawn["layout"]["yaxis"]["scaleanchor"] == "x"
    assert drawn["data"][0]["marker"]["color"] == "var(--cold)"


def test_a_band_ends_where_fractions_do():
    line = Series("a", [0, 1], np.array([0.9, 0.5]), "red", np.array([0.3, 0.1]))
    band, _ = line_chart("what", "task", [line]).plotly()["data"]
    assert band["x"] == [0, 1, 1, 0]
    assert band["y"] == pytest.approx([1.0, 0.6, 0.4, 0.6])


def test_names_are_cut_and_shown_as_text():
    assert escaped("a<b>&c{") == "a&lt;b&gt;&amp;c&#123;"
    assert short("x" * 30) == "x" * 30
    assert short("x" * 31) == "x" * 29 + "\N{HORIZONTAL ELLIPSIS}"


def test_a_number_that_json_does_not_know_is_refused(tmp_path):
    chart = PointMap("what", {"none": [Point((NAN, 0.0), "", 0, "")]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_page(tmp_path / "page.html", "", "", [Section("", "", [chart])], "")


@pytest.mark.parametrize(
    ("said", "value", "text"),
    [
        (wording.size, 999, "999 B"),
        (wording.size, 1_000, "1.00 kB"),
        (wording.size, 12_340, "12.3 kB"),
        (wording.size, 999_600, "1.00 MB"),
        (wording.size, 99_970_000, "100 MB"),
        (wording.duration, 4.21, "4.2 s"),
        (wording.duration, 59.96, "1 min 00 s"),
        (wording.duration, 3599.6, "1 h 00 min"),
    ],
)
def test_sizes_have_three_digits_and_durations_two_units(said, value, text):
    assert said(value) == text


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [
        (0.5124, "0.512", "+0.512"),
        (-0.0104, f"{wording.MINUS}0.010", f"{wording.MINUS}0.010"),
        (-0.0001, "0.000", "0.000"),
        (None, wording.UNKNOWN, wording.UNKNOWN),
        (NAN, wording.UNKNOWN, wording.UNKNOWN),
    ],
)
def test_fractions_have_three_decimals(value, plain, signed):
    assert wording.fraction(value) == plain
    assert wording.signed(value) == signed


def test_nouns_agree_with_their_count_and_a_mean_of_one_is_not_called_one():
    assert wording.plural(1, "class") == "1 class"
    assert wording.plural(1_200, "different class") == "1,200 different classes"
    assert wording.mean_over(1, "seed") == "of the only seed"
    assert wording.mean_over(2_000, "client") == "mean over 2,000 clients"
