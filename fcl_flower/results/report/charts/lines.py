"""A picture of fractions: one line for each of several things, named at its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.charts.plot import (
    CHARACTER,
    LEFT,
    TOP,
    WIDTH,
    Panel,
    Scale,
)
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.markup import Markup, join, number, tag

_LABEL_HEIGHT = 15


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line.

    Attributes:
        name: written at the right end of the line.
        at: tasks or rounds, ascending.
        values: one for each of ``at``, NaN where there is none.
        spread: half height of a band around the line, shape of ``values``; NaN for
            no band. It ends where fractions do, at 0 and 1.
        colour: CSS colour.
        dashed: for the run without communication.
    """

    name: str
    at: npt.NDArray[np.int64]
    values: Accuracy
    spread: Accuracy
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """What a line goes over: ``first`` to ``last``, each of them a ``name``."""

    name: str
    first: int
    last: int
    title: str


def over_tasks(tasks: int) -> Steps:
    """Return the steps of a stream of tasks, counted from 0."""
    return Steps("task", 0, tasks - 1, "task learned last")


def over_rounds(rounds: int) -> Steps:
    """Return the steps of a run whose rounds are counted from 1."""
    return Steps("round", 1, rounds, "round")


def lines(
    series: Sequence[Series], steps: Steps, what: str, title: str = "test accuracy"
) -> Markup:
    """Return fractions (y) after each step (x), labelled at the right end.

    Args:
        series: at least one, each with a value that is not NaN.
        steps: the x axis.
        what: description of the picture.
        title: of the y axis.
    """
    low = min(float(np.nanmin(_edge(s, -1))) for s in series)
    high = max(float(np.nanmax(_edge(s, 1))) for s in series)
    values = plot.ticks(low, high)
    room = 24 + CHARACTER * max(len(plot.short(s.name)) + 7 for s in series)
    height = max(300, _LABEL_HEIGHT * len(series) + 20)
    margin = max(0.25, 0.01 * (steps.last - steps.first))
    panel = Panel(
        Scale(steps.first - margin, steps.last + margin, LEFT, WIDTH - room),
        Scale(values[0], values[-1], TOP + height, TOP),
    )
    fits = int((WIDTH - room - LEFT) / 34)
    parts = [
        panel.y_axis(values, plot.tick_decimals(values), title),
        panel.x_axis(
            plot.whole_ticks(steps.first, steps.last, fits),
            lambda step: f"{step:.0f}",
            steps.title,
        ),
    ]
    parts += [_band(panel, s) for s in series if not np.isnan(s.spread).all()]
    for one in series:
        style = "line dashed" if one.dashed else "line"
        points = [
            (panel.x(step), panel.y(value))
            for step, value in zip(one.at.tolist(), one.values, strict=True)
        ]
        parts.append(plot.path(points, one.colour, style))
        parts += [
            plot.dot(
                x, y, one.colour, f"{one.name}, after {steps.name} {t}: {value:.3f}"
            )
            for (x, y), t, value in zip(points, one.at, one.values, strict=True)
            if not math.isnan(y)
        ]
    parts.append(_end_labels(panel, series))
    return plot.drawing(WIDTH, TOP + height + 46, parts, what)


def _edge(series: Series, side: int) -> Accuracy:
    """Return the lower (-1) or upper (1) edge of the band, cut off at 0 and 1."""
    edge: Accuracy = series.values + side * np.nan_to_num(series.spread)
    return np.clip(edge, 0, 1)


def _band(panel: Panel, series: Series) -> Markup:
    known = np.flatnonzero(~np.isnan(series.values)).tolist()
    upper, lower = (
        [(panel.x(series.at[i]), panel.y(edge[i])) for i in known]
        for edge in (_edge(series, 1), _edge(series, -1))
    )
    outline = [*upper, *reversed(lower)]
    corners = " ".join(f"{number(x)},{number(y)}" for x, y in outline)
    return tag("polygon", points=corners, class_="band", style=f"fill:{series.colour}")


def _end_labels(panel: Panel, series: Sequence[Series]) -> Markup:
    """Return name and last value beside the end of each line, joined by a leader."""
    last = [int(np.flatnonzero(~np.isnan(s.values))[-1]) for s in series]
    ends = [panel.y(float(s.values[t])) for s, t in zip(series, last, strict=True)]
    placed = plot.spread_out(ends, _LABEL_HEIGHT, panel.y.end, panel.y.start)
    parts = []
    for one, t, end, y in zip(series, last, ends, placed, strict=True):
        x = panel.x.end
        leader = [(panel.x(int(one.at[t])) + 5, end), (x + 4, end), (x + 12, y)]
        parts.append(plot.path(leader, one.colour, "leader"))
        label = f"{plot.short(one.name)}: {numbers.fraction(float(one.values[t]))}"
        parts.append(plot.text(label, x + 16, y + 4))
    return join(parts)
