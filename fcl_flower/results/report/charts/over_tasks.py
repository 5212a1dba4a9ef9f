"""Bars over tasks or hidden concepts, and the colours of tasks."""

import math
from collections.abc import Callable

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.charts.plot import LEFT, TOP, WIDTH, Panel, Scale
from fcl_flower.results.report.html.markup import Markup


def task_colour(task: int, tasks: int) -> str:
    """Return a colour between the first and the last task's, through a third one."""
    share = 200 * task / (tasks - 1) if tasks > 1 else 200.0
    pair = ("middle", "early") if share <= 100 else ("late", "middle")
    percent = share if share <= 100 else share - 100
    return f"color-mix(in oklab,var(--{pair[0]}) {percent:.0f}%,var(--{pair[1]}))"


def bars_over_tasks(
    means: Accuracy,
    points: Accuracy,
    title: str,
    limits: tuple[float, float],
    label: Callable[[float], str],
    colour: Callable[[float], str],
    what: str,
    noun: str,
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
        noun: what a bar stands for.
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
        left, hint = panel.x(task) - shift - width / 2, f"{noun} {task}: {mean:+.3f}"
        bar = (left, edges[0], width, max(edges[1] - edges[0], 1))
        parts.append(plot.box(*bar, colour(mean), hint))
        parts += [
            plot.dot(
                left + width + shift,
                panel.y(float(value)),
                "var(--muted)",
                f"{noun} {task}, {unit}: {value:+.3f}",
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
    parts.append(panel.x_axis(shown, lambda task: f"{task:.0f}", noun))
    return plot.drawing(end + 8, TOP + height + 46, parts, what)
