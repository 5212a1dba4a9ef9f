"""What pages are made of: numbers, ticks, labels and markup."""

import math

import numpy as np
import pytest

from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.markup import Markup, tag


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
    ("low", "high", "expected"),
    [
        (0.41, 0.59, [0.4, 0.45, 0.5, 0.55, 0.6]),
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.013, 0.02, [-0.02, -0.01, 0.0, 0.01, 0.02]),
        (0.5, 0.5, [0.5, 0.6]),
        (0.0, 0.0, [0.0, 0.2]),
    ],
)
def test_ticks_are_round_and_enclose_the_data(low, high, expected):
    ticks = plot.ticks(low, high)
    np.testing.assert_allclose(ticks, expected, atol=1e-12)


def test_ticks_of_counted_things_are_whole_and_start_at_the_first():
    assert plot.whole_ticks(1, 12, 20) == [*range(1, 13)]
    assert plot.whole_ticks(1, 200, 20) == [1, *range(10, 201, 10)]
    assert plot.whole_ticks(0, 9, 5) == [0, 2, 4, 6, 8]
    assert plot.whole_ticks(0, 0, 5) == [0]


def test_labels_are_spread_out_in_order_and_stay_inside():
    placed = plot.spread_out([50, 52, 10, 99], 15, 0, 100)
    assert placed == [50, 65, 10, 99]
    assert plot.spread_out([98, 99, 100], 15, 0, 100) == [70, 85, 100]


def test_markup_escapes_text_and_attributes_but_not_markup():
    inner = tag("b", "1 < 2 & 3")
    assert inner == "<b>1 &lt; 2 &amp; 3</b>"
    whole = tag("p", inner, Markup("<br/>"), class_='a"b', stroke_width=1.5, x=None)
    assert whole == (
        '<p class="a&quot;b" stroke-width="1.5"><b>1 &lt; 2 &amp; 3</b><br/></p>'
    )
