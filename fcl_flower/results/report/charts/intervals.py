"""A picture of means with their standard deviation, and of the single values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.charts.plot import CHARACTER, WIDTH, Panel, Scale
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.markup import Markup, tag


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """A mean, its standard deviation, and the values behind them, shape (units,)."""

    name: str
    mean: float
    spread: float
    points: Accuracy
    colour: str


def intervals(rows: Sequence[Interval], title: str, what: str) -> Markup:
    """Return one row per interval: disc and whisker above, the single values below."""
    pitch = 48
    # Names are a little larger than the labels of ticks.
    left = 16 + 1.1 * CHARACTER * max(len(plot.short(row.name)) for row in rows)
    widths = [np.nan_to_num(row.spread) for row in rows]
    low = min(
        min(np.nanmin(r.points), r.mean - w) for r, w in zip(rows, widths, strict=True)
    )
    high = max(
        max(np.nanmax(r.points), r.mean + w) for r, w in zip(rows, widths, strict=True)
    )
    values = plot.ticks(min(float(low), 0.0), max(float(high), 0.0), 8)
    x = Scale(values[0], values[-1], left, WIDTH - 130)
    bottom = 8 + pitch * len(rows)
    panel = Panel(x, Scale(0, 1, bottom, 8))
    parts: list[str] = [
        tag(
            "line",
            x1=x(value),
            x2=x(value),
            y1=8,
            y2=bottom,
            class_="zero" if value == 0 else "grid",
        )
        for value in values
    ]
    for index, (row, width) in enumerate(zip(rows, widths, strict=True)):
        y = 8 + pitch * (index + 0.5)
        whisker = [(x(row.mean - width), y - 5), (x(row.mean + width), y - 5)]
        label = numbers.with_spread(numbers.signed(row.mean), row.spread)
        parts += [
            plot.text(plot.short(row.name), left - 12, y + 2, "end"),
            plot.path(whisker, row.colour, "whisker"),
            plot.dot(x(row.mean), y - 5, row.colour, f"mean {row.mean:+.3f}", 5.5),
            plot.text(label, WIDTH - 110, y + 2, class_="tick"),
        ]
        parts += [
            plot.dot(
                x(float(value)), y + 9, "var(--muted)", f"{unit}: {value:+.3f}", 2.4
            )
            for unit, value in enumerate(row.points)
            if not math.isnan(value)
        ]
    parts.append(panel.x_axis(values, plot.tick_decimals(values), title))
    return plot.drawing(WIDTH, bottom + 46, parts, what)
