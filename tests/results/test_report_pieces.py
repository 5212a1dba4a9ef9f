"""What pages are made of: numbers, names and colours."""

import math

import numpy as np
import pytest

from fcl_flower.results.report.charts import traces
from fcl_flower.results.report.charts.bars import bars_over_tasks
from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Section, Table
from fcl_flower.results.report.html.page import page


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (12_340, "12.3 kB"),
        (999_400, "999 kB"),
        (999_600, "1.00 MB"),
        (99_970_000, "100 MB"),
        (1_234_567_890, "1.23 GB"),
        (5_600_000_000_000, "5.60 TB"),
    ],
)
def test_sizes_have_three_digits(count, text):
    assert numbers.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4.21, "4.2 s"),
        (59.96, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [
        (0.5124, "0.512", "+0.512"),
        (-0.0104, "\N{MINUS SIGN}0.010", "\N{MINUS SIGN}0.010"),
        (-0.0001, "0.000", "0.000"),
        (None, "\N{EN DASH}", "\N{EN DASH}"),
        (math.nan, "\N{EN DASH}", "\N{EN DASH}"),
    ],
)
def test_fractions_have_three_decimals(value, plain, signed):
    assert numbers.fraction(value) == plain
    assert numbers.signed(value) == signed


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "client", "1 client"),
        (0, "client", "0 clients"),
        (1, "class", "1 class"),
        (1_200, "different class", "1,200 different classes"),
    ],
)
def test_nouns_agree_with_their_count(count, noun, text):
    assert numbers.plural(count, noun) == text


def test_a_mean_of_one_is_not_called_a_mean():
    assert numbers.mean_over(1, "seed") == "of the only seed"
    assert numbers.mean_over(2_000, "client") == "mean over 2,000 clients"


def test_names_are_cut_and_shown_as_text():
    assert traces.short("a<b>&c") == "a&lt;b&gt;&amp;c"
    assert traces.short("x" * 30) == "x" * 30
    assert traces.short("x" * 31) == "x" * 29 + "\N{HORIZONTAL ELLIPSIS}"


def test_colours_of_tasks_go_from_the_first_to_the_last():
    assert [traces.task_colour(i, 3) for i in range(3)] == [
        *("#d9962b", "#2a9188", "#5b6fc8")
    ]
    assert traces.task_colour(0, 1) == "#2a9188"


def test_a_trace_of_what_is_not_known_has_gaps():
    assert traces.known([0.5, math.nan, 1]) == [0.5, None, 1.0]


def test_an_axis_of_fractions_ends_at_one_and_another_where_it_likes():
    at, one = np.arange(2), Series("a", np.arange(2), np.array([1.0, np.nan]), "red")
    other = Series("b", at, np.array([np.nan, 1.4]), "red")
    axis = lines([one], "task", "what").layout["yaxis"]
    assert axis["autorangeoptions"] == {"clipmax": 1.05}
    axis = lines([one, other], "task", "what").layout["yaxis"]
    assert axis == {"title": {"text": "test accuracy"}}


@pytest.mark.parametrize("limits", [(-0.01, 0.14), (-0.2, 0.01), (0.0, 0.5)])
def test_heights_have_room_for_their_figures_on_both_sides_of_zero(limits):
    chart = bars_over_tasks(
        np.array(limits), np.empty((0, 2)), "", limits, str, ("red", "blue"), "", "task"
    )

    low, high = chart.layout["yaxis"]["range"]
    room = 0.1 * (limits[1] - limits[0])
    assert low <= limits[0] - room if limits[0] else low == 0
    assert high >= limits[1] + room


def test_a_number_that_json_does_not_know_is_refused():
    figure = {"type": "scatter", "x": [0], "y": [math.nan]}
    chart = Chart("what", [figure], {"height": 1}, Table(["x"], []))
    with pytest.raises(ValueError, match="not JSON compliant"):
        page("", "", [Section("", "", chart)], "")
