"""Pictures over rounds: curves, and columns of bytes stacked by kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

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


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One panel over the rounds.

    Attributes:
        title: of the y axis.
        values: the curve, one for each round, NaN where nothing is known.
        colour: CSS colour.
        holds: values that the y axis must hold, whatever those of the curve are.
    """

    title: str
    values: Accuracy
    colour: str
    holds: tuple[float, ...] = ()


def lines_over_rounds(
    tracks: Sequence[Track], tasks: Sequence[int], troubled: Sequence[int], what: str
) -> Markup:
    """Return one panel per track over rounds 1..n, the tasks as bands behind them.

    Args:
        tracks: their values have one entry per round.
        tasks: the task of each round.
        troubled: rounds in which a client's reply was missing, marked at the bottom.
        what: description of the picture.
    """
    height, gap = 150, 46
    x = Scale(0.5, len(tasks) + 0.5, LEFT, WIDTH - 8)
    parts: list[str] = []
    panel = Panel(x, Scale(0, 1, 0, 0))
    for index, track in enumerate(tracks):
        bottom = TOP + height + index * (height + gap)
        known = np.append(track.values[~np.isnan(track.values)], track.holds)
        values = plot.ticks(float(known.min()), float(known.max()), 4)
        panel = Panel(x, Scale(values[0], values[-1], bottom, bottom - height))
        parts.append(_task_bands(panel, tasks, named=index == 0))
        parts.append(panel.y_axis(values, plot.tick_decimals(values), track.title))
        points = [(x(i + 1), panel.y(value)) for i, value in enumerate(track.values)]
        parts.append(plot.path(points, track.colour, "line"))
    parts += [
        tag(
            "path",
            tag("title", f"round {r}: a reply is missing"),
            d=f"M{number(x(r))} {number(panel.y.start - 9)}l4 8h-8z",
            class_="trouble",
        )
        for r in troubled
    ]
    parts.append(_rounds_axis(panel, len(tasks)))
    return plot.drawing(WIDTH, panel.y.start + 46, parts, what)


def _rounds_axis(panel: Panel, rounds: int) -> Markup:
    return panel.x_axis(plot.whole_ticks(1, rounds, 20), lambda r: f"{r:.0f}", "round")


def _task_bands(panel: Panel, tasks: Sequence[int], named: bool) -> Markup:
    """Return a band behind every other task, and its number where there is room.

    A single task needs no band: hidden concepts have no time of their own.
    """
    if len(set(tasks)) == 1:
        return join([])
    parts: list[str] = []
    first = 1
    for order, (task, rounds) in enumerate(groupby(tasks)):
        after = first + len(list(rounds))
        start, end = panel.x(first - 0.5), panel.x(after - 0.5)
        if order % 2:
            parts.append(
                tag(
                    "rect",
                    x=start,
                    y=panel.y.end,
                    width=end - start,
                    height=panel.y.start - panel.y.end,
                    class_="shade",
                )
            )
        name = f"task {task}"
        name = name if len(name) * CHARACTER < end - start else str(task)
        if named and len(name) * CHARACTER < end - start:
            middle = (start + end) / 2
            parts.append(plot.text(name, middle, panel.y.end - 5, "middle", "tick"))
        first = after
    return join(parts)


def columns_over_rounds(
    panels: Mapping[str, Mapping[str, npt.NDArray[np.int64]]],
    colours: Mapping[str, str],
    tasks: Sequence[int],
    what: str,
) -> Markup:
    """Return columns of bytes stacked by kind, one panel per direction, one scale.

    Args:
        panels: by title of the panel, then by kind, the bytes of each round.
        colours: CSS colour by kind.
        tasks: the task of each round.
        what: description of the picture.
    """
    height, gap, rounds = 150, 46, len(tasks)
    x = Scale(0.5, rounds + 0.5, LEFT, WIDTH - 8)
    totals = [np.sum([*kinds.values()], axis=0) for kinds in panels.values()]
    values = plot.ticks(0, float(max(total.max() for total in totals)), 4)
    width = (x(2) - x(1)) * (0.8 if rounds <= 120 else 1)
    parts: list[str] = []
    panel = Panel(x, Scale(0, 1, 0, 0))
    for index, (title, kinds) in enumerate(panels.items()):
        bottom = TOP + height + index * (height + gap)
        panel = Panel(x, Scale(0, values[-1], bottom, bottom - height))
        parts.append(_task_bands(panel, tasks, named=index == 0))
        parts.append(panel.y_axis(values, plot.tick_sizes(values), title))
        base = np.zeros(rounds)
        for kind, sizes in kinds.items():
            parts.append(_columns(panel, base, sizes, width, colours[kind]))
            base = base + sizes
        parts.append(_hints(panel, kinds, rounds))
    parts.append(_rounds_axis(panel, rounds))
    return plot.drawing(WIDTH, panel.y.start + 46, parts, what)


def _columns(
    panel: Panel,
    base: Accuracy,
    sizes: npt.NDArray[np.int64],
    width: float,
    colour: str,
) -> Markup:
    """Return one path for all rounds: a page of 2000 rounds must stay small."""
    outline = "".join(
        f"M{number(panel.x(i + 1) - width / 2)} {number(panel.y(float(base[i])))}"
        f"h{number(width)}V{number(panel.y(float(base[i] + sizes[i])))}"
        f"h{number(-width)}z"
        for i in np.flatnonzero(sizes).tolist()
    )
    return tag("path", d=outline, style=f"fill:{colour}")


def _hints(
    panel: Panel, kinds: Mapping[str, npt.NDArray[np.int64]], rounds: int
) -> Markup:
    """Return transparent boxes, one per round, with the sizes as hints."""
    width = panel.x(2) - panel.x(1)
    top, height = panel.y.end, panel.y.start - panel.y.end
    boxes = []
    for i in range(rounds):
        shown = [f"{kind} {numbers.size(n[i])}" for kind, n in kinds.items() if n[i]]
        hint = f"round {i + 1}: {', '.join(shown) or 'nothing'}"
        left = panel.x(i + 1) - width / 2
        boxes.append(plot.box(left, top, width, height, "transparent", hint))
    return join(boxes)
