"""Pictures over tasks: one line or one bar for each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.metrics import Accuracy
from fcl_flower.report import numbers, plot
from fcl_flower.report.markup import Markup, join, number, tag
from fcl_flower.report.plot import CHARACTER, LEFT, TOP, WIDTH, Panel, Scale

LABEL_HEIGHT = 15


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line over the tasks.

    Attributes:
        name: written at the right end of the line.
        values: one for each task, NaN where there is none.
        spread: half height of a band around the line, shape of ``values``; NaN for
            no band.
        colour: CSS colour.
        dashed: for the run without communication.
    """

    name: str
    values: Accuracy
    spread: Accuracy
    colour: str
    dashed: bool = False


def task_colour(task: int, tasks: int) -> str:
    """Return a colour between the first and the last task's, through a third one."""
    share = 200 * task / (tasks - 1) if tasks > 1 else 200.0
    pair = ("middle", "early") if share <= 100 else ("late", "middle")
    percent = share if share <= 100 else share - 100
    return f"color-mix(in oklab,var(--{pair[0]}) {percent:.0f}%,var(--{pair[1]}))"


def lines_over_tasks(series: Sequence[Series], what: str) -> Markup:
    """Return accuracies (y) after each task learned (x), labelled at the right end."""
    tasks = len(series[0].values)
    low = min(np.nanmin(s.values - np.nan_to_num(s.spread)) for s in series)
    high = max(np.nanmax(s.values + np.nan_to_num(s.spread)) for s in series)
    values = plot.ticks(float(low), float(high))
    room = 24 + CHARACTER * max(len(plot.short(s.name)) + 7 for s in series)
    height = max(300, LABEL_HEIGHT * len(series) + 20)
    panel = Panel(
        Scale(-0.25, tasks - 0.75, LEFT, WIDTH - room),
        Scale(values[0], values[-1], TOP + height, TOP),
    )
    fits = int((WIDTH - room - LEFT) / 34)
    parts = [
        panel.y_axis(values, plot.tick_decimals(values), "test accuracy"),
        panel.x_axis(
            plot.whole_ticks(0, tasks - 1, fits),
            lambda task: f"{task:.0f}",
            "task learned last",
        ),
    ]
    parts += [_band(panel, s) for s in series if not np.isnan(s.spread).all()]
    for one in series:
        style = "line dashed" if one.dashed else "line"
        points = [(panel.x(t), panel.y(v)) for t, v in enumerate(one.values)]
        parts.append(plot.path(points, one.colour, style))
        parts += [
            plot.dot(
                x, y, one.colour, f"{one.name}, after task {t}: {one.values[t]:.3f}"
            )
            for t, (x, y) in enumerate(points)
            if not math.isnan(y)
        ]
    parts.append(_end_labels(panel, series))
    return plot.drawing(WIDTH, TOP + height + 46, parts, what)


def _band(panel: Panel, series: Series) -> Markup:
    spread = np.nan_to_num(series.spread)
    known = np.flatnonzero(~np.isnan(series.values)).tolist()
    upper = [(panel.x(t), panel.y(series.values[t] + spread[t])) for t in known]
    lower = [(panel.x(t), panel.y(series.values[t] - spread[t])) for t in known]
    outline = [*upper, *reversed(lower)]
    corners = " ".join(f"{number(x)},{number(y)}" for x, y in outline)
    return tag("polygon", points=corners, class_="band", style=f"fill:{series.colour}")


def _end_labels(panel: Panel, series: Sequence[Series]) -> Markup:
    """Return name and last value beside the end of each line, joined by a leader."""
    known = [s for s in series if not np.isnan(s.values).all()]
    last = [int(np.flatnonzero(~np.isnan(s.values))[-1]) for s in known]
    ends = [panel.y(float(s.values[t])) for s, t in zip(known, last, strict=True)]
    placed = plot.spread_out(ends, LABEL_HEIGHT, panel.y.end, panel.y.start)
    parts = []
    for one, t, end, y in zip(known, last, ends, placed, strict=True):
        x = panel.x.end
        leader = [(panel.x(t) + 5, end), (x + 4, end), (x + 12, y)]
        parts.append(plot.path(leader, one.colour, "leader"))
        label = f"{plot.short(one.name)}: {numbers.fraction(float(one.values[t]))}"
        parts.append(plot.text(label, x + 16, y + 4))
    return join(parts)


def bars_over_tasks(
    means: Accuracy,
    points: Accuracy,
    title: str,
    limits: tuple[float, float],
    label: Callable[[float], str],
    colour: Callable[[float], str],
    what: str,
) -> Markup:
    """Return one bar per task from the zero line, with a dot for each client or seed.

    Args:
        means: heights of the bars, shape (tasks,), NaN for no bar.
        points: shape (units, tasks); empty for no dots.
        title: of the y axis.
        limits: least and greatest value that the y axis must hold.
        label: text for a height.
        colour: CSS colour for a height.
        what: description of the picture.
    """
    tasks, height = len(means), 240
    # A tenth more than the bars need, so that their numbers have room.
    values = plot.ticks(min(1.1 * limits[0], 0.0), max(1.1 * limits[1], 0.0))
    end = min(WIDTH - 8, LEFT + 110 * tasks)
    panel = Panel(
        Scale(-0.5, tasks - 0.5, LEFT, end),
        Scale(values[0], values[-1], TOP + height, TOP),
    )
    pitch = panel.x(1) - panel.x(0)
    width, shift = pitch * 0.46, pitch * 0.12
    parts = [panel.y_axis(values, plot.tick_decimals(values), title)]
    for task in np.flatnonzero(~np.isnan(means)).tolist():
        mean = float(means[task])
        edges = sorted((panel.y(0), panel.y(mean)))
        left, hint = panel.x(task) - shift - width / 2, f"task {task}: {mean:+.3f}"
        bar = (left, edges[0], width, max(edges[1] - edges[0], 1))
        parts.append(plot.box(*bar, colour(mean), hint))
        parts += [
            plot.dot(
                left + width + shift,
                panel.y(float(value)),
                "var(--muted)",
                f"task {task}, {unit}: {value:+.3f}",
                2.2,
            )
            for unit, value in enumerate(points[:, task])
            if not math.isnan(value)
        ]
        if pitch >= 40:
            beyond = edges[0] - 5 if mean >= 0 else edges[1] + 13
            middle = left + width / 2
            parts.append(plot.text(label(mean), middle, beyond, "middle", "tick"))
    fits = int((end - LEFT) / 24)
    shown = plot.whole_ticks(0, tasks - 1, fits)
    parts.append(panel.x_axis(shown, lambda task: f"{task:.0f}", "task"))
    return plot.drawing(end + 8, TOP + height + 46, parts, what)
