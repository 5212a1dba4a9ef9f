"""The three kinds of charts: lines, a matrix, and a map of points.

A chart is its numbers, which it also lists as a table for readers who do not see it.
Here each kind becomes data for Plotly; `exports.figures` draws it for papers.
"""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from fcl_flower.results.measures import Accuracy
from fcl_flower.results.report import wording
from fcl_flower.results.report.wording import Table

LONGEST = 30
"""The number of characters of a name beside a chart."""
NUMBERED = 18
"""The number of columns of a matrix up to which cells show their numbers."""
_TASKS = np.array([[217, 150, 43], [42, 145, 136], [91, 111, 200]])
"""The red, green and blue of the first, the middle and the last task."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The numbers of a line.

    Attributes:
        at: ascending places on the x axis.
        values: value at each place; NaN where there is none.
        colour: CSS colour, or ``var(--name)`` of the page.
        spread: half the height of the band around the line.
        dashed: whether the line is dashed, as for local-only runs.
    """

    name: str
    at: Sequence[int]
    values: Accuracy
    colour: str
    spread: Accuracy | None = None
    dashed: bool = False

    @property
    def legend(self) -> str:
        """The short name and the last value."""
        last = float(self.values[~np.isnan(self.values)][-1])
        return f"{short(self.name)}: {wording.fraction(last)}"

    @property
    def band(self) -> tuple[list[int], Accuracy, Accuracy]:
        """The places of the band, its lower and its upper edge, between 0 and 1."""
        half = np.zeros(len(self.at)) if self.spread is None else self.spread
        there = ~np.isnan(self.values + half)
        middle, half = self.values[there], half[there]
        low, high = np.clip([middle - half, middle + half], 0, 1)
        return np.array(self.at, int)[there].tolist(), low, high


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Values after each task or round, with the last value in the legend.

    Attributes:
        what: title of the chart.
        step: unit of the x axis, ``task`` or ``round``.
        series: lines, each with a value.
        title: title of the y axis.
    """

    kind: ClassVar = "chart"
    caption: ClassVar = ""
    width: ClassVar = 0
    what: str
    step: str
    series: Sequence[Series]
    title: str

    @property
    def height(self) -> int:
        """The height in pixels."""
        return 340 + 8 * len(self.series)

    @property
    def places(self) -> list[int]:
        """The places of all lines on the x axis."""
        return sorted({place for line in self.series for place in line.at})

    @property
    def x_title(self) -> str:
        """The title of the x axis."""
        return "task learned last" if self.step == "task" else self.step

    @property
    def table(self) -> Table:
        """A row for each place along the x axis, and a column for each line."""
        columns = []
        for line in self.series:
            spread = line.spread if line.spread is not None else [None] * len(line.at)
            means = map(wording.fraction, line.values)
            texts = map(wording.with_spread, means, spread)
            columns.append(dict(zip(line.at, texts, strict=True)))
        rows = [
            [str(place), *(column.get(place, wording.UNKNOWN) for column in columns)]
            for place in self.places
        ]
        return Table([self.step, *(line.name for line in self.series)], rows)

    def plotly(self) -> dict[str, Any]:
        """Make Plotly's traces and layout."""
        bands = [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [*at, *at[::-1]],
                "y": [*high.tolist(), *low[::-1].tolist()],
                "fill": "toself",
                "fillcolor": line.colour,
                "opacity": 0.14,
                "line": {"width": 0},
                "legendgroup": escaped(line.name),  # the legend hides it with its line
                "showlegend": False,
                "hoverinfo": "skip",
            }
            for line in self.series
            if line.spread is not None
            for at, low, high in [line.band]
        ]
        lines = [
            {
                "type": "scatter",
                "mode": "lines+markers" if len(line.at) <= 60 else "lines",
                "name": escaped(line.legend),
                "legendgroup": escaped(line.name),
                "meta": [escaped(line.name)],
                "x": [*line.at],
                "y": _or_none(line.values),
                "line": {
                    "color": line.colour,
                    "dash": "dash" if line.dashed else "solid",
                },
                "hovertemplate": f"%{{meta[0]}}, after {self.step} %{{x}}: %{{y:.3f}}"
                "<extra></extra>",
            }
            for line in self.series
        ]
        few = {"tickvals": self.places} if len(self.places) <= 25 else {}
        layout = {
            "showlegend": True,
            "xaxis": {"title": {"text": self.x_title}, **few},
            "yaxis": {"title": {"text": self.title}},
        }
        return {"data": [*bands, *lines], "layout": layout}


def line_chart(
    what: str,
    step: str,
    series: Iterable[Series],
    title: str = "test accuracy",
) -> Lines | None:
    """Make `Lines` of those series that have a value; None without any."""
    known = [line for line in series if not np.isnan(line.values).all()]
    return Lines(what, step, known, title) if known else None


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A matrix as coloured cells, with numbers where there is room.

    Attributes:
        what: title of the chart.
        titles: titles of the rows and of the columns.
        rows: names of the rows.
        columns: names of the columns.
        cells: values; NaN leaves a cell empty.
        marked: row and column of the cells with a dot.
    """

    kind: ClassVar = "chart"
    caption: ClassVar = ""
    what: str
    titles: tuple[str, str]
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Accuracy
    marked: Collection[tuple[int, int]] = ()

    @property
    def height(self) -> int:
        """The height in pixels."""
        return round(min(max(700 / len(self.rows), 9.0), 30.0) * len(self.rows)) + 110

    @property
    def width(self) -> int:
        """The greatest width in pixels."""
        return 220 + 54 * len(self.columns)

    @property
    def ends(self) -> tuple[float, float]:
        """The values of the palest and the strongest colour, which differ."""
        low, high = np.nanmin(self.cells), np.nanmax(self.cells)
        return float(low), float(high if high > low else low + 1)

    @property
    def numbered(self) -> bool:
        """Whether there is room for numbers in the cells."""
        return len(self.columns) <= NUMBERED

    @property
    def texts(self) -> list[list[str]]:
        """The numbers as text, empty for NaN."""
        return [
            ["" if np.isnan(value) else wording.fraction(value) for value in row]
            for row in self.cells
        ]

    @property
    def table(self) -> Table:
        """The matrix with its names."""
        named = zip(self.rows, self.texts, strict=True)
        return Table([self.titles[0], *self.columns], [[n, *row] for n, row in named])

    def plotly(self) -> dict[str, Any]:
        """Make Plotly's traces and layout."""
        (row_title, column_title), (low, high) = self.titles, self.ends
        heat = {
            "type": "heatmap",
            "z": [_or_none(row) for row in self.cells],
            "coloraxis": "coloraxis",
            "text": self.texts,
            "texttemplate": "%{text}" if self.numbered else "",
            "hovertext": [
                [
                    escaped(f"{row_title} {row}, {column_title} {column}: {text}")
                    for column, text in zip(self.columns, texts, strict=True)
                ]
                for row, texts in zip(self.rows, self.texts, strict=True)
            ],
            "hoverinfo": "text",
            "hoverongaps": False,
            "xgap": 1,
            "ygap": 1,
        }
        dots = {
            "type": "scatter",
            "mode": "markers",
            "x": [column + 0.36 for _, column in sorted(self.marked)],
            "y": [row - 0.3 for row, _ in sorted(self.marked)],
            "marker": {"size": 6, "color": "var(--mark)"},
            "hoverinfo": "skip",
        }
        across, down = (-0.5, len(self.columns) - 0.5), (len(self.rows) - 0.5, -0.5)
        layout = {
            "showlegend": False,
            "coloraxis": {"cmin": low, "cmax": high},
            "xaxis": _axis(column_title, self.columns, across),
            "yaxis": _axis(row_title, self.rows, down),
        }
        return {"data": [heat, dots] if self.marked else [heat], "layout": layout}


class Point(NamedTuple):
    """A point of a map; its category decides its colour, and -1 is no category."""

    position: tuple[float, float]
    text: str
    category: int
    hint: str


@dataclass(frozen=True, slots=True, eq=False)
class PointMap:
    """The points of each category, by its name, with one scale for both axes."""

    kind: ClassVar = "chart"
    width: ClassVar = 440
    height: ClassVar = 440
    what: str
    categories: Mapping[str, Sequence[Point]]
    caption: str = ""

    @property
    def table(self) -> Table:
        """A row for each point."""
        rows = [
            [point.hint, *(f"{x:.3g}" for x in point.position)]
            for members in self.categories.values()
            for point in members
        ]
        return Table(["point", "x", "y"], rows)

    def plotly(self) -> dict[str, Any]:
        """Make Plotly's traces and layout."""
        traces = [
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": name,
                "x": [point.position[0] for point in members],
                "y": [point.position[1] for point in members],
                "text": [point.text for point in members],
                "textfont": {"color": category_ink(members[0].category)},
                "marker": {
                    "size": 18,
                    "color": category_colour(members[0].category),
                    "line": {"width": 1, "color": "var(--muted)"},
                },
                "hovertext": [escaped(point.hint) for point in members],
                "hoverinfo": "text",
            }
            for name, members in self.categories.items()
        ]
        axis = {"zeroline": False, "scaleanchor": "x"}
        return {"data": traces, "layout": {"showlegend": True, "yaxis": axis}}


Chart: TypeAlias = Lines | Cells | PointMap


def ticks(labels: Sequence[str]) -> tuple[list[int], list[str]]:
    """Choose the places and names beside a matrix: of many every second or third."""
    every = -(-len(labels) // 40)
    return [*range(0, len(labels), every)], [*map(short, labels[::every])]


def _axis(title: str, labels: Sequence[str], ends: tuple[float, float]) -> object:
    places, names = ticks(labels)
    return {
        "title": {"text": escaped(title)},
        "tickvals": places,
        "ticktext": [*map(escaped, names)],
        "showgrid": False,
        "range": ends,
    }


def escaped(text: str) -> str:
    """Escape a text for Plotly, where ``<b>`` and ``%{x}`` have a meaning."""
    return html.escape(text, quote=False).replace("{", "&#123;")


def short(name: str) -> str:
    """Cut a name so that it fits beside a chart."""
    fits = len(name) <= LONGEST
    return name if fits else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def category_colour(category: int) -> str:
    """Pick one of eight colours for a category; the palest for none (below 0)."""
    return "var(--cold)" if category < 0 else f"var(--c{category % 8})"


def category_ink(category: int) -> str:
    """Pick the colour of a text on the colour of a category."""
    return "var(--ink)" if category < 0 else "var(--paper)"


def task_colour(task: int, tasks: int) -> str:
    """Mix a task's colour between three colours: of the first, middle and last task."""
    place = 2 * task / (tasks - 1) if tasks > 1 else 1.0
    mixed = [np.interp(place, [0, 1, 2], part) for part in _TASKS.T]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _or_none(values: Accuracy) -> list[float | None]:
    """List values as JSON has them, with None for NaN, which leaves a gap."""
    return [None if np.isnan(value) else value for value in values.tolist()]
