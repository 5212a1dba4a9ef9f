"""A line for each of several things, over tasks or rounds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.traces import hints, known, short, trace
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Table, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line.

    Attributes:
        name: in the legend.
        at: tasks or rounds, ascending.
        values: one for each of ``at``, NaN where there is none.
        colour: CSS colour.
        spread: half height of a band around the line, shape of ``values``; None for
            no band. It ends where fractions do, at 0 and 1.
        dashed: for the run without communication.
    """

    name: str
    at: npt.NDArray[np.int64]
    values: Accuracy
    colour: str
    spread: Accuracy | None = None
    dashed: bool = False


def lines(
    series: Sequence[Series],
    step: str,
    what: str,
    title: str = "test accuracy",
    tasks: Sequence[int] = (),
    marked: Collection[int] = (),
) -> Chart:
    """Return values (y) after each step (x); the legend has the last of each.

    Args:
        series: at least one, each with a value that is not NaN.
        step: what the lines go over, ``task`` or ``round``.
        what: description of the picture.
        title: of the y axis.
        tasks: of each round, as bands behind the lines; empty for none.
        marked: rounds in which a reply is missing, as triangles at the bottom.
    """
    at = sorted({place for one in series for place in one.at.tolist()})
    ticks = {"tickmode": "array", "tickvals": at} if len(at) <= 25 else {}
    over = {"task": "task learned last"}.get(step, step)
    table = [[str(place), *(_told(one, place) for one in series)] for place in at]
    return Chart(
        what,
        [
            *(_band(one) for one in series if one.spread is not None),
            *(_line(one, step) for one in series),
            *(_marks(series, marked) if marked else ()),
        ],
        {
            "height": 340 + 8 * len(series),
            "showlegend": True,
            "xaxis": {"title": {"text": over}, **ticks},
            "yaxis": {"title": {"text": title}, **_no_more_than_one(series)},
            **task_bands(tasks),
        },
        Table([step, *(one.name for one in series)], table),
    )


def _no_more_than_one(series: Sequence[Series]) -> Trace:
    """Return what ends an axis of fractions at 1: a lone point would have it at 2."""
    fractions = all(np.nanmax(one.values) <= 1 for one in series)
    return {"autorangeoptions": {"clipmax": 1.05}} if fractions else {}


def task_bands(tasks: Sequence[int]) -> Trace:
    """Return a band behind every other task, and its number where there is room.

    A single task needs no band: hidden concepts have no time of their own.
    """
    groups = [(task, len([*rounds])) for task, rounds in groupby(tasks)]
    ends = np.cumsum([0, *(count for _, count in groups)]) + 0.5
    shapes, names = [], []
    for order, (task, rounds) in enumerate(groups if len(groups) > 1 else ()):
        left, right = float(ends[order]), float(ends[order + 1])
        band = {"type": "rect", "x0": left, "x1": right, "y0": 0, "y1": 1}
        look = {"fillcolor": "var(--panel)", "line": {"width": 0}, "layer": "below"}
        shapes += [{**band, **look, "yref": "paper"}] if order % 2 else []
        name = f"task {task}" if len(groups) <= 12 else str(task)
        place = {"x": left + rounds / 2, "y": 1, "yref": "paper", "yanchor": "bottom"}
        names += [{**place, "text": name, "showarrow": False}]
    return {"shapes": shapes, "annotations": names if len(groups) <= 40 else []}


def _line(series: Series, step: str) -> Trace:
    last = float(series.values[~np.isnan(series.values)][-1])
    told = zip(series.at, series.values, strict=True)
    return trace(
        "scatter",
        mode="lines+markers" if len(series.at) <= 60 else "lines",
        name=f"{short(series.name)}: {numbers.fraction(last)}",
        legendgroup=short(series.name),
        x=series.at.tolist(),
        y=known(series.values),
        line={"color": series.colour, "dash": "dash" if series.dashed else "solid"},
        **hints(f"{series.name}, after {step} {at}: {value:.3f}" for at, value in told),
    )


def _band(series: Series) -> Trace:
    """Return the area within the spread; it goes with its line in the legend."""
    spread = np.nan_to_num(np.array(series.spread, np.float64))
    there = ~np.isnan(series.values)
    at, middle, half = series.at[there], series.values[there], spread[there]
    return trace(
        "scatter",
        mode="lines",
        x=[*at.tolist(), *at[::-1].tolist()],
        y=np.clip([*(middle + half), *(middle - half)[::-1]], 0, 1).tolist(),
        fill="toself",
        fillcolor=series.colour,
        opacity=0.14,
        line={"width": 0},
        legendgroup=short(series.name),
        showlegend=False,
        hoverinfo="skip",
    )


def _marks(series: Sequence[Series], marked: Collection[int]) -> list[Trace]:
    foot = min(float(np.nanmin(one.values)) for one in series)
    look = {"symbol": "triangle-up", "size": 10, "color": "var(--bad)"}
    place = {"x": [*marked], "y": [foot] * len(marked), "marker": look}
    told = hints(f"round {r}: a reply is missing" for r in marked)
    name = "a reply is missing"
    return [trace("scatter", mode="markers", name=name, **place, **told)]


def _told(series: Series, place: int) -> str:
    found = np.flatnonzero(series.at == place)
    if not len(found):
        return numbers.UNKNOWN
    spread = np.nan if series.spread is None else float(series.spread[found[0]])
    return numbers.with_spread(numbers.fraction(series.values[found[0]]), spread)
