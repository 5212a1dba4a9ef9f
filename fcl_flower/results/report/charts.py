"""The four kinds of charts: plain data drawn by Plotly, and their numbers as a table.

Exports draw the same data with Matplotlib.
"""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from fcl_flower.results.report import wording
from fcl_flower.results.report.wording import Table

Values: TypeAlias = npt.NDArray[np.float64] | npt.NDArray[np.int64]

LONGEST = 30
"""Characters of a name beside a picture."""
NUMBERED = 18
"""Columns of a matrix up to which a cell has its number in it."""
_TASKS = np.array([[217, 150, 43], [42, 145, 136], [91, 111, 200]])
"""Red, green and blue of the first, the middle and the last task."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Numbers that belong together: a line, or the columns of one colour.

    Values stand at ascending places ``at`` of the x axis, NaN where there is none. A
    colour is of CSS, or ``var(--name)`` of the page; columns may have one each. The
    spread is half the height of a band or a whisker. Local-only runs are dashed.
    """

    name: str
    at: Sequence[int]
    values: Values
    colour: str | Sequence[str] = "var(--muted)"
    spread: Values | None = None
    dashed: bool = False


@dataclass(frozen=True, eq=False)
class LineChart:
    """Values after each ``step``, a task or round; the legend has the last of each.

    ``tasks`` are those of each round, as bands behind the lines. ``marked`` are rounds
    in which a reply is missing, as triangles at the bottom. No series is NaN
    everywhere.
    """

    kind: ClassVar = "chart"
    what: str
    step: str
    series: Sequence[Series]
    title: str = "test accuracy"
    tasks: Sequence[int] = ()
    marked: Collection[int] = ()

    @property
    def foot(self) -> float:
        """Least value, at which rounds are marked."""
        return min(float(np.nanmin(one.values)) for one in self.series)


@dataclass(frozen=True, eq=False)
class BarChart:
    """Columns from the zero line, with dots of single clients or seeds beside them.

    ``names`` are those of the places along the x axis, counted from 0. The y axis holds
    ``limits``, too. ``stacked`` columns are bytes by kind, on top of each other.
    """

    kind: ClassVar = "chart"
    what: str
    step: str
    series: Sequence[Series]
    title: str
    dots: Sequence[Series] = ()
    names: Sequence[str] = ()
    limits: tuple[float, float] = (0.0, 0.0)
    tasks: Sequence[int] = ()
    stacked: bool = False

    @property
    def span(self) -> tuple[float, float]:
        """Ends of the y axis, with room for numbers beyond the columns."""
        drawn: list[npt.NDArray[Any]]
        drawn = [one.values for one in (*self.series, *self.dots)]
        if self.stacked:
            drawn = [np.sum(drawn, axis=0)]
        for one in self.series:
            half = np.nan_to_num(0.0 if one.spread is None else one.spread)
            drawn += [one.values - half, one.values + half]
        known = np.concatenate([*drawn, np.array([0.0, *self.limits])])
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        room = 0.12 * (high - low)
        return (low - room if low else 0.0), (high + room if high else 0.0)


@dataclass(frozen=True, eq=False)
class MatrixChart:
    """A matrix as coloured cells, with numbers where there is room; NaN: empty.

    ``titles`` say what rows and columns are; ``marked`` cells bear a dot. The palest
    and the strongest colour are those of ``limits``, or of the least and greatest
    value. One of several charts beside each other has a caption, and explains no
    colours. Values may be ``whole`` numbers.
    """

    kind: ClassVar = "chart"
    what: str
    titles: tuple[str, str]
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Values
    marked: Collection[tuple[int, int]] = ()
    limits: tuple[float, float] | None = None
    caption: str = ""
    whole: bool = False

    @property
    def colours(self) -> tuple[float, float]:
        """Values of the palest and of the strongest colour."""
        low, high = self.limits or (np.nanmin(self.cells), np.nanmax(self.cells))
        return float(low), float(high if high > low else low + 1)

    @property
    def numbered(self) -> bool:
        """Whether cells have room for their numbers."""
        return len(self.columns) <= (6 if self.caption else NUMBERED)

    @property
    def texts(self) -> list[list[str]]:
        """What each cell holds, empty where there is nothing."""
        show = "{:.0f}".format if self.whole else wording.fraction
        return [["" if np.isnan(v) else show(v) for v in row] for row in self.cells]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a map; its category stands for its colour, -1 for none."""

    position: tuple[float, float]
    text: str
    category: int
    hint: str


@dataclass(frozen=True, eq=False)
class PointChart:
    """A map of points by the name of their category, with one scale for both axes."""

    kind: ClassVar = "chart"
    what: str
    categories: Mapping[str, Sequence[Point]]
    caption: str = ""


Chart: TypeAlias = LineChart | BarChart | MatrixChart | PointChart


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A picture, and the same numbers for those who do not see it.

    ``data`` has Plotly's ``data`` and ``layout``. The caption is the description if
    empty. ``width`` is in pixels, where the page is not narrower; 0 for all of the
    page.
    """

    what: str
    data: Mapping[str, Any]
    table: Table
    caption: str = ""
    width: int = 0


def draw(chart: Chart) -> Figure:
    """Draw a chart of any kind."""
    match chart:
        case LineChart():
            return _lines(chart)
        case BarChart():
            return _bars(chart)
        case MatrixChart():
            return _matrix(chart)
        case PointChart():
            return _points(chart)


def _lines(chart: LineChart) -> Figure:
    series = chart.series
    at = sorted({place for one in series for place in one.at})
    title = "task learned last" if chart.step == "task" else chart.step
    layout = {
        "height": 340 + 8 * len(series),
        "showlegend": True,
        "xaxis": {"title": {"text": title}, "tickvals": at if len(at) <= 25 else None},
        "yaxis": {"title": {"text": chart.title}},
        **_task_bands(chart.tasks),
    }
    if all(np.nanmax(one.values) <= 1 for one in series):
        # An axis of fractions ends at 1: a lone point would have it at 2.
        layout["yaxis"] |= {"autorangeoptions": {"clipmax": 1.05}}
    traces = [_band(one) for one in series if one.spread is not None]
    hover = f"%{{meta[0]}}, after {chart.step} %{{x}}: %{{y:.3f}}<extra></extra>"
    for one in series:
        last = float(one.values[~np.isnan(one.values)][-1])
        line = go.Scatter(
            mode="lines+markers" if len(one.at) <= 60 else "lines",
            name=f"{short(one.name)}: {wording.fraction(last)}",
            legendgroup=short(one.name),
            meta=[escaped(one.name)],
            x=[*one.at],
            y=_known(one.values),
            line={"color": one.colour, "dash": "dash" if one.dashed else "solid"},
            hovertemplate=hover,
        )
        traces.append(line)
    if chart.marked:
        marks = go.Scatter(
            mode="markers",
            name="a reply is missing",
            x=[*chart.marked],
            y=[chart.foot] * len(chart.marked),
            marker={"symbol": "triangle-up", "size": 10, "color": "var(--bad)"},
            hovertemplate="round %{x}: a reply is missing<extra></extra>",
        )
        traces.append(marks)
    return Figure(chart.what, _data(traces, layout), _table(chart.step, series))


def _bars(chart: BarChart) -> Figure:
    at = chart.series[0].at
    form = "%{y:,} bytes" if chart.stacked else "%{y:.3f}"
    place = "" if chart.names else f", {chart.step} %{{x:.0f}}"
    hover = f"%{{meta[0]}}{place}: {form}<extra></extra>"
    spread = any(one.spread is not None for one in chart.series)
    numbered = not (chart.stacked or spread) and len(at) <= 20
    columns = [
        go.Bar(
            name=short(one.name),
            meta=[escaped(one.name)],
            x=[*at],
            y=_known(one.values),
            error_y=None if one.spread is None else {"array": _known(one.spread)},
            width=None if chart.stacked else 0.5,
            marker={"color": one.colour, "line": {"width": 0}},
            text=[*map(wording.fraction, one.values)] if numbered else None,
            textposition="outside",
            cliponaxis=False,
            hovertemplate=hover,
        )
        for one in chart.series
    ]
    dots = [
        go.Scatter(
            mode="markers",
            meta=[escaped(one.name)],
            x=[at + 0.33 for at in one.at],
            y=_known(one.values),
            marker={"color": "var(--muted)", "size": 5},
            hovertemplate=hover,
        )
        for one in chart.dots
    ]
    xaxis: dict[str, Any] = {"title": {"text": chart.step}}
    if chart.names:
        xaxis |= {"tickvals": [*at], "ticktext": [*map(short, chart.names)]}
    elif len(at) <= 30:
        xaxis |= {"dtick": 1}
    bytes_axis = {"tickformat": "~s", "ticksuffix": "B"} if chart.stacked else {}
    layout = {
        "height": 300,
        "barmode": "stack",
        "showlegend": chart.stacked,
        "legend": {"traceorder": "normal"},
        "xaxis": xaxis,
        "yaxis": {"title": {"text": chart.title}, "range": [*chart.span], **bytes_axis},
        **_task_bands(chart.tasks),
    }
    table = _table(chart.step, [*chart.series, *chart.dots], chart.names)
    width = 0 if chart.stacked else 160 + 110 * len(at)
    return Figure(chart.what, _data([*columns, *dots], layout), table, width=width)


def _matrix(chart: MatrixChart) -> Figure:
    (row_title, column_title), texts = chart.titles, chart.texts
    low, high = chart.colours
    cells = go.Heatmap(
        z=[_known(row) for row in chart.cells],
        coloraxis="coloraxis",
        text=texts,
        texttemplate="%{text}" if chart.numbered else "",
        hovertext=[
            [
                escaped(f"{row_title} {row}, {column_title} {column}: {text}")
                for column, text in zip(chart.columns, line, strict=True)
            ]
            for row, line in zip(chart.rows, texts, strict=True)
        ],
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
    )
    marks = go.Scatter(
        mode="markers",
        x=[column + 0.36 for _, column in sorted(chart.marked)],
        y=[row - 0.3 for row, _ in sorted(chart.marked)],
        marker={"size": 6, "color": "var(--mark)"},
        hoverinfo="skip",
    )
    rows, columns = len(chart.rows), len(chart.columns)
    layout = {
        "height": round(min(max(700 / rows, 9.0), 30.0) * rows) + 110,
        "showlegend": False,
        "coloraxis": {"cmin": low, "cmax": high, "showscale": not chart.caption},
        "xaxis": _names(column_title, chart.columns) | {"range": [-0.5, columns - 0.5]},
        "yaxis": _names(row_title, chart.rows) | {"range": [rows - 0.5, -0.5]},
    }
    data = _data([cells, marks] if chart.marked else [cells], layout)
    lines = [[name, *line] for name, line in zip(chart.rows, texts, strict=True)]
    table = Table([row_title, *chart.columns], lines)
    return Figure(chart.what, data, table, chart.caption, 220 + 54 * columns)


def _points(chart: PointChart) -> Figure:
    traces = [
        go.Scatter(
            mode="markers+text",
            name=name,
            x=[point.position[0] for point in members],
            y=[point.position[1] for point in members],
            text=[point.text for point in members],
            textfont={"color": "var(--paper)" if number >= 0 else "var(--ink)"},
            marker={
                "size": 18,
                "color": category_colour(number),
                "line": {"width": 1, "color": "var(--muted)"},
            },
            hovertext=[escaped(point.hint) for point in members],
            hoverinfo="text",
        )
        for name, members in chart.categories.items()
        for number in [members[0].category]
    ]
    axis = {"zeroline": False, "scaleanchor": "x"}
    layout = {"height": 440, "showlegend": True, "yaxis": axis}
    rows = [
        [point.hint, *(f"{x:.3g}" for x in point.position)]
        for members in chart.categories.values()
        for point in members
    ]
    table = Table(["point", "x", "y"], rows)
    return Figure(chart.what, _data(traces, layout), table, chart.caption)


def _data(traces: Iterable[Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "data": [one.to_plotly_json() for one in traces],
        "layout": go.Layout(**layout).to_plotly_json(),
    }


def _table(step: str, series: Sequence[Series], names: Sequence[str] = ()) -> Table:
    """Make a row for each place along the x axis, and a column for each series."""
    columns = []
    for one in series:
        spread = [None] * len(one.at) if one.spread is None else one.spread
        texts = (
            str(value)
            if isinstance(value, np.integer)
            else wording.with_spread(wording.fraction(value), half)
            for value, half in zip(one.values, spread, strict=True)
        )
        columns.append(dict(zip(one.at, texts, strict=True)))
    rows = [
        [
            names[place] if names else str(place),
            *(column.get(place, wording.UNKNOWN) for column in columns),
        ]
        for place in sorted({place for column in columns for place in column})
    ]
    return Table([step, *(one.name for one in series)], rows)


def band(one: Series) -> tuple[list[float], list[float]]:
    """Trace the area within a line's spread; it ends where fractions do."""
    there = ~np.isnan(one.values)
    at, middle = np.array(one.at)[there], one.values[there]
    half = np.nan_to_num(np.array(one.spread, np.float64))[there]
    edges = np.clip([*(middle + half), *(middle - half)[::-1]], 0, 1)
    return [*at.tolist(), *at[::-1].tolist()], edges.tolist()


def _band(one: Series) -> go.Scatter:
    x, y = band(one)
    return go.Scatter(
        mode="lines",
        x=x,
        y=y,
        fill="toself",
        fillcolor=one.colour,
        opacity=0.14,
        line={"width": 0},
        legendgroup=short(one.name),  # it goes with the line in the legend
        showlegend=False,
        hoverinfo="skip",
    )


def task_spans(tasks: Sequence[int]) -> list[tuple[str, float, float]]:
    """Name each task among the rounds, with where it begins and ends.

    A single task has no span: hidden concepts have no time of their own.
    """
    groups = [(task, len([*rounds])) for task, rounds in groupby(tasks)]
    ends = np.cumsum([0, *(count for _, count in groups)]) + 0.5
    word = "task " if len(groups) <= 12 else ""
    spans = [
        (f"{word}{task}", float(ends[i]), float(ends[i + 1]))
        for i, (task, _) in enumerate(groups)
    ]
    return spans if len(spans) > 1 else []


def _task_bands(tasks: Sequence[int]) -> dict[str, Any]:
    """Draw a band behind every other task, and its name where there is room."""
    spans = task_spans(tasks)
    look = {"fillcolor": "var(--panel)", "line": {"width": 0}, "layer": "below"}
    edges = {"type": "rect", "y0": 0, "y1": 1, "yref": "paper"}
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    return {
        "shapes": [{**edges, **look, "x0": x, "x1": end} for _, x, end in spans[1::2]],
        "annotations": [
            {**place, "x": (left + right) / 2, "text": name}
            for name, left, right in spans
            if len(spans) <= 40
        ],
    }


def _names(title: str, labels: Sequence[str]) -> dict[str, Any]:
    """Name rows or columns; of many every second or third."""
    every = -(-len(labels) // 40)
    return {
        "title": {"text": escaped(title)},
        "tickvals": [*range(0, len(labels), every)],
        "ticktext": [*map(short, labels[::every])],
        "showgrid": False,
        "zeroline": False,
    }


def escaped(text: str) -> str:
    """Escape a text for Plotly: ``<b>`` is bold to it, and ``%{x}`` a place holder."""
    return html.escape(text, quote=False).replace("{", "&#123;")


def short(name: str) -> str:
    """Cut and escape a name so that it fits beside a picture."""
    whole = len(name) <= LONGEST
    return escaped(name if whole else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}")


def category_colour(category: int) -> str:
    """Pick one of eight colours for things without an order; the palest below 0."""
    return "var(--cold)" if category < 0 else f"var(--c{category % 8})"


def task_colour(task: int, tasks: int) -> str:
    """Mix a colour between the first and the last task's, through a third one."""
    place = 2 * task / (tasks - 1) if tasks > 1 else 1.0
    mixed = [np.interp(place, [0, 1, 2], part) for part in _TASKS.T]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _known(values: Iterable[float]) -> list[float | None]:
    """List values as JSON knows them: None for NaN, which leaves a gap."""
    return [None if np.isnan(value) else value for value in np.array(values).tolist()]
