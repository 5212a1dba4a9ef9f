"""Heat maps: a matrix as coloured cells, with numbers where there is room."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.traces import (
    category_colour,
    escaped,
    known,
    short,
    table_of,
    trace,
)
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Table, Trace

_NUMBERED = 18
"""Columns up to which a cell has its number in it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What the rows or the columns of a matrix are: a title, and a name for each."""

    title: str
    names: Sequence[str]

    def shown(self) -> Trace:
        """Return the axis as Plotly wants it; of many names every second or third."""
        every = -(-len(self.names) // 40)
        return {
            "title": {"text": self.title},
            "tickvals": [*range(0, len(self.names), every)],
            "ticktext": [*map(short, self.names[::every])],
            "showgrid": False,
            "zeroline": False,
        }


def heat_map(
    values: Accuracy,
    rows: Axis,
    columns: Axis,
    limits: tuple[float, float],
    hint: Callable[[int, int], str],
    what: str,
    marked: Collection[tuple[int, int]] = (),
    caption: str = "",
) -> Chart:
    """Return amounts as colours; a NaN leaves its cell empty.

    Args:
        values: shape (rows, columns).
        rows: from top to bottom.
        columns: from left to right.
        limits: values of the palest and of the strongest colour.
        hint: text shown under the pointer on a cell, by row and column.
        what: description of the picture.
        marked: cells that bear a dot.
        caption: of one of several beside each other, none of which explains its
            colours; empty for a picture by itself.
    """
    room = len(columns.names) <= (6 if caption else _NUMBERED)
    cells = {"coloraxis": "coloraxis", "texttemplate": "%{z:.3f}" if room else ""}
    scale = {"cmin": limits[0], "cmax": limits[1], "showscale": not caption}
    told = table_of(values, numbers.fraction)
    matrix = trace("heatmap", **cells, **_cells(values, hint))
    layout = {"coloraxis": scale}
    return _chart(what, [matrix, *_marks(marked)], layout, rows, columns, told, caption)


def category_map(
    values: Accuracy,
    rows: Axis,
    columns: Axis,
    name: Callable[[int], str],
    hint: Callable[[int, int], str],
    what: str,
    marked: Collection[tuple[int, int]] = (),
) -> Chart:
    """Return numbers of categories as colours, named in the legend; below 0: none.

    The arguments are those of `heat_map`, and ``name`` the name of a category.
    """
    told = table_of(values, lambda v: numbers.UNKNOWN if v < 0 else f"{v:.0f}")
    steps = [(place, category_colour(place - 1)) for place in range(9)]
    cells = {
        "text": told,
        "texttemplate": "%{text}" if len(columns.names) <= 2 * _NUMBERED else "",
        "zmin": -1.5,
        "zmax": 7.5,
        "showscale": False,
        "colorscale": [
            [(p + end) / 9, colour] for p, colour in steps for end in (0, 1)
        ],
    }
    keys = [
        trace(
            "scatter",
            mode="markers",
            x=[None],
            y=[None],
            name=name(number),
            marker={"symbol": "square", "size": 11, "color": category_colour(number)},
        )
        for number in sorted({*values[~np.isnan(values)].astype(int).tolist()})
    ]
    colour = np.where(values < 0, -1, values % 8)
    matrix = trace("heatmap", **cells, **_cells(colour, hint))
    return _chart(what, [matrix, *keys, *_marks(marked)], {}, rows, columns, told)


def _cells(values: Accuracy, hint: Callable[[int, int], str]) -> Trace:
    texts = [
        ["" if np.isnan(v) else escaped(hint(r, c)) for c, v in enumerate(row)]
        for r, row in enumerate(values)
    ]
    shown = {"hovertext": texts, "hoverinfo": "text", "hoverongaps": False}
    return {"z": [known(row) for row in values], "xgap": 1, "ygap": 1, **shown}


def _marks(marked: Collection[tuple[int, int]]) -> list[Trace]:
    """Return a dot in the upper right of each marked cell."""
    if not marked:
        return []
    look = {"size": 6, "color": "var(--mark)"}
    x, y = [c + 0.36 for _, c in sorted(marked)], [r - 0.3 for r, _ in sorted(marked)]
    shown = {"name": "marked", "hoverinfo": "skip", "showlegend": False}
    return [trace("scatter", mode="markers", x=x, y=y, marker=look, **shown)]


def _chart(
    what: str,
    traces: Sequence[Trace],
    layout: Trace,
    rows: Axis,
    columns: Axis,
    told: Sequence[Sequence[str]],
    caption: str = "",
) -> Chart:
    side = min(max(700 / len(rows.names), 9.0), 30.0)
    return Chart(
        what,
        traces,
        {
            **layout,
            "height": round(side * len(rows.names)) + 110,
            "xaxis": columns.shown() | {"range": [-0.5, len(columns.names) - 0.5]},
            "yaxis": rows.shown() | {"range": [len(rows.names) - 0.5, -0.5]},
        },
        Table(
            [rows.title, *columns.names],
            [[name, *row] for name, row in zip(rows.names, told, strict=True)],
        ),
        caption,
        width=220 + 54 * len(columns.names),
    )
