"""Bars over tasks and rounds, and means with their deviation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.lines import task_bands
from fcl_flower.results.report.charts.traces import (
    escaped,
    hints,
    known,
    short,
    table_of,
    trace,
)
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Table

_DOT = {"color": "var(--muted)", "size": 5}


def bars_over_tasks(
    means: Accuracy,
    points: Accuracy,
    title: str,
    limits: tuple[float, float],
    show: Callable[[float], str],
    colours: tuple[str, str],
    what: str,
    noun: str,
) -> Chart:
    """Return one bar per task from the zero line, with a dot for each client or seed.

    Args:
        means: heights of the bars, shape (tasks,), NaN for no bar.
        points: shape (units, tasks); empty for no dots.
        title: of the y axis.
        limits: least and greatest value that the y axis must hold.
        show: text for a height.
        colours: CSS colours above zero and below.
        what: description of the picture.
        noun: what a bar stands for.
    """
    tasks = np.arange(len(means))
    units = [(unit, i, x) for unit, row in enumerate(points) for i, x in enumerate(row)]
    bars = trace(
        "bar",
        x=tasks.tolist(),
        y=known(means),
        width=0.5,
        marker={"color": [colours[0] if mean > 0 else colours[1] for mean in means]},
        text=[*map(show, means)] if len(means) <= 20 else [],
        textposition="outside",
        cliponaxis=False,
        **hints(f"{noun} {i}: {mean:+.3f}" for i, mean in enumerate(means)),
    )
    dots = trace(
        "scatter",
        mode="markers",
        x=[i + 0.33 for _, i, _ in units],
        y=known(value for *_, value in units),
        marker=_DOT,
        **hints(f"{noun} {i}, {unit}: {value:+.3f}" for unit, i, value in units),
    )
    low, high = min(limits[0], 0.0), max(limits[1], 0.0)
    room = 0.12 * (high - low)  # for the heights in figures beyond the bars
    span = [low - room if low < 0 else 0.0, high + room if high > 0 else 0.0]
    ticks = {"dtick": 1} if len(means) <= 30 else {}
    rows = zip(
        map(str, tasks), table_of(np.vstack([means, points]).T, show), strict=True
    )
    return Chart(
        what,
        [bars, dots],
        {
            "height": 320,
            "showlegend": False,
            "xaxis": {"title": {"text": noun}, **ticks},
            "yaxis": {"title": {"text": title}, "range": span},
        },
        Table(
            [noun, "mean", *map(str, range(len(points)))], [[i, *r] for i, r in rows]
        ),
        width=160 + 110 * len(means),
    )


def columns_over_rounds(
    kinds: Mapping[str, npt.NDArray[np.int64]],
    colours: Mapping[str, str],
    tasks: Sequence[int],
    limit: int,
    what: str,
) -> Chart:
    """Return the bytes of each round as columns stacked by kind.

    Args:
        kinds: by kind, the bytes of each round.
        colours: CSS colour by kind.
        tasks: the task of each round.
        limit: most bytes that the y axis must hold.
        what: description of the picture.
    """
    rounds = [*range(1, len(tasks) + 1)]
    columns = [
        trace(
            "bar",
            name=short(kind),
            x=rounds,
            y=sizes.tolist(),
            marker={"color": colours[kind], "line": {"width": 0}},
            **hints(
                f"round {r}: {kind} {numbers.size(size)}"
                for r, size in zip(rounds, sizes, strict=True)
            ),
        )
        for kind, sizes in kinds.items()
    ]
    return Chart(
        what,
        columns,
        {
            "height": 300,
            "barmode": "stack",
            "showlegend": True,
            "legend": {"traceorder": "normal"},
            "xaxis": {"title": {"text": "round"}, "range": [0.5, len(tasks) + 0.5]},
            "yaxis": {
                "range": [0, 1.05 * limit],
                "tickformat": "~s",
                "ticksuffix": "B",
            },
            **task_bands(tasks),
        },
        Table(
            ["round", *kinds],
            [[str(r), *(f"{n[r - 1]}" for n in kinds.values())] for r in rounds],
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """A mean, its standard deviation, and the values behind them, shape (units,)."""

    name: str
    mean: float
    spread: float
    points: Accuracy
    colour: str

    @property
    def told(self) -> str:
        """Return mean and deviation in words."""
        return numbers.with_spread(numbers.signed(self.mean), self.spread)


def intervals(rows: Sequence[Interval], title: str, what: str) -> Chart:
    """Return one row per interval: disc and whisker above, the single values below."""
    traces = []
    for place, row in enumerate(rows):
        traces += [
            trace(
                "scatter",
                mode="markers",
                x=[row.mean],
                y=[place],
                error_x={"array": known([row.spread]), "color": row.colour},
                marker={"color": row.colour, "size": 11},
                **hints([f"{row.name}: mean {row.mean:+.3f}"]),
            ),
            trace(
                "scatter",
                mode="markers",
                x=known(row.points),
                y=[place + 0.25] * len(row.points),
                marker=_DOT,
                **hints(f"{row.name}, {u}: {x:+.3f}" for u, x in enumerate(row.points)),
            ),
        ]
    return Chart(
        what,
        traces,
        {
            "height": 110 + 52 * len(rows),
            "showlegend": False,
            "xaxis": {
                "title": {"text": title},
                "rangemode": "tozero",
                "zeroline": True,
            },
            "yaxis": {
                "tickvals": [*range(len(rows))],
                "ticktext": [
                    f"{short(row.name)}<br>{escaped(row.told)}" for row in rows
                ],
                "range": [len(rows) - 0.4, -0.5],
                "showgrid": False,
                "zeroline": False,
            },
        },
        Table(
            ["method", "mean ± deviation", "single values"],
            [[r.name, r.told, ", ".join(map(numbers.signed, r.points))] for r in rows],
        ),
    )
