"""The four kinds of charts as Plotly takes them, and their numbers as a table."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """A picture, and the same numbers for those who do not see it.

    Traces and layout are Plotly's, with colours of the page. The page shows ``what``
    where the caption is empty. ``width`` is in pixels, where the page is not narrower;
    0 for all of the page.
    """

    kind: ClassVar = "chart"
    what: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    table: Table
    caption: str = ""
    width: int = 0


def line_chart(
    what: str,
    step: str,
    series: Sequence[Series],
    title: str = "test accuracy",
    tasks: Sequence[int] = (),
    marked: Collection[int] = (),
) -> Chart | None:
    """Draw values after each ``step``, a task or round, with the last in the legend.

    None where no series has a value.

    Args:
        what: the chart shows.
        step: what the places of the x axis count.
        series: the lines; those that are NaN everywhere are left out.
        title: of the y axis.
        tasks: those of each round, drawn as bands behind the lines.
        marked: rounds in which a reply is missing, as triangles at the bottom.
    """
    series = [one for one in series if not np.isnan(one.values).all()]
    if not series:
        return None
    at = sorted({place for one in series for place in one.at})
    layout = {
        "height": 340 + 8 * len(series),
        "showlegend": True,
        "xaxis": {
            "title": {"text": "task learned last" if step == "task" else step},
            **({"tickvals": at} if len(at) <= 25 else {}),
        },
        "yaxis": {"title": {"text": title}},
        **_task_bands(tasks),
    }
    if all(np.nanmax(one.values) <= 1 for one in series):
        # An axis of fractions ends at 1: a lone point would have it at 2.
        layout["yaxis"] |= {"autorangeoptions": {"clipmax": 1.05}}
    traces = [_band(one) for one in series if one.spread is not None]
    for one in series:
        last = float(one.values[~np.isnan(one.values)][-1])
        line = _trace(
            "scatter",
            mode="lines+markers" if len(one.at) <= 60 else "lines",
            name=f"{short(one.name)}: {wording.fraction(last)}",
            legendgroup=short(one.name),
            meta=[escaped(one.name)],
            x=[*one.at],
            y=_known(one.values),
            line={"color": one.colour, "dash": "dash" if one.dashed else "solid"},
            hovertemplate=f"%{{meta[0]}}, after {step} %{{x}}: %{{y:.3f}}"
            "<extra></extra>",
        )
        traces.append(line)
    if marked:
        foot = min(float(np.nanmin(one.values)) for one in series)
        marks = _trace(
            "scatter",
            mode="markers",
            name="a reply is missing",
            x=[*marked],
            y=[foot] * len(marked),
            marker={"symbol": "triangle-up", "size": 10, "color": "var(--bad)"},
            hovertemplate="round %{x}: a reply is missing<extra></extra>",
        )
        traces.append(marks)
    return Chart(what, traces, layout, _table(step, series))


def bar_chart(
    what: str,
    step: str,
    series: Sequence[Series],
    title: str,
    dots: Sequence[Series] = (),
    *,
    names: Sequence[str] = (),
    limits: tuple[float, float] = (0.0, 0.0),
    tasks: Sequence[int] = (),
    stacked: bool = False,
) -> Chart:
    """Draw columns from the zero line, with dots of single clients or seeds beside.

    Args:
        what: the chart shows.
        step: what the places of the x axis are.
        series: the columns, all at the same places.
        title: of the y axis.
        dots: values beside the columns.
        names: of the places along the x axis, counted from 0.
        limits: values that the y axis has to hold, too.
        tasks: those of each round, drawn as bands behind the columns.
        stacked: the columns are bytes by kind, on top of each other.
    """
    at = series[0].at
    form = "%{y:,} bytes" if stacked else "%{y:.3f}"
    place = "" if names else f", {step} %{{x:.0f}}"
    hover = f"%{{meta[0]}}{place}: {form}<extra></extra>"
    spread = any(one.spread is not None for one in series)
    numbered = not (stacked or spread) and len(at) <= 20
    columns = [
        _trace(
            "bar",
            name=short(one.name),
            meta=[escaped(one.name)],
            x=[*at],
            y=_known(one.values),
            error_y=None if one.spread is None else {"array": _known(one.spread)},
            width=None if stacked else 0.5,
            marker={"color": one.colour, "line": {"width": 0}},
            text=[*map(wording.fraction, one.values)] if numbered else None,
            textposition="outside",
            cliponaxis=False,
            hovertemplate=hover,
        )
        for one in series
    ]
    beside = [
        _trace(
            "scatter",
            mode="markers",
            meta=[escaped(one.name)],
            x=[at + 0.33 for at in one.at],
            y=_known(one.values),
            marker={"color": "var(--muted)", "size": 5},
            hovertemplate=hover,
        )
        for one in dots
    ]
    xaxis: dict[str, Any] = {"title": {"text": step}}
    if names:
        xaxis |= {"tickvals": [*at], "ticktext": [*map(short, names)]}
    elif len(at) <= 30:
        xaxis |= {"dtick": 1}
    bytes_axis = {"tickformat": "~s", "ticksuffix": "B"} if stacked else {}
    layout = {
        "height": 300,
        "barmode": "stack",
        "showlegend": stacked,
        "legend": {"traceorder": "normal"},
        "xaxis": xaxis,
        "yaxis": {
            "title": {"text": title},
            "range": _span(series, dots, limits, stacked),
            **bytes_axis,
        },
        **_task_bands(tasks),
    }
    table = _table(step, [*series, *dots], names)
    width = 0 if stacked else 160 + 110 * len(at)
    return Chart(what, [*columns, *beside], layout, table, width=width)


def _span(
    series: Sequence[Series],
    dots: Sequence[Series],
    limits: tuple[float, float],
    stacked: bool,
) -> list[float]:
    """Find the ends of the y axis, with room for numbers beyond the columns."""
    drawn: list[npt.NDArray[Any]] = [one.values for one in (*series, *dots)]
    if stacked:
        drawn = [np.sum(drawn, axis=0)]
    for one in series:
        half = np.nan_to_num(0.0 if one.spread is None else one.spread)
        drawn += [one.values - half, one.values + half]
    known = np.concatenate([*drawn, np.array([0.0, *limits])])
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    room = 0.12 * (high - low)
    return [low - room if low else 0.0, high + room if high else 0.0]


def matrix_chart(
    what: str,
    titles: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Values,
    marked: Collection[tuple[int, int]] = (),
    *,
    limits: tuple[float, float] | None = None,
    caption: str = "",
    whole: bool = False,
) -> Chart:
    """Draw a matrix as coloured cells, with numbers where there is room.

    Args:
        what: the chart shows.
        titles: what rows and columns are.
        rows: their names.
        columns: their names.
        cells: values; NaN is an empty cell.
        marked: cells that bear a dot.
        limits: values of the palest and the strongest colour; None for the least and
            the greatest value.
        caption: of one of several charts beside each other, which explains no colours.
        whole: the values are whole numbers.
    """
    row_title, column_title = titles
    low, high = limits or (float(np.nanmin(cells)), float(np.nanmax(cells)))
    show = "{:.0f}".format if whole else wording.fraction
    texts = [["" if np.isnan(v) else show(v) for v in row] for row in cells]
    numbered = len(columns) <= (6 if caption else NUMBERED)
    heat = _trace(
        "heatmap",
        z=[_known(row) for row in cells],
        coloraxis="coloraxis",
        text=texts,
        texttemplate="%{text}" if numbered else "",
        hovertext=[
            [
                escaped(f"{row_title} {row}, {column_title} {column}: {text}")
                for column, text in zip(columns, line, strict=True)
            ]
            for row, line in zip(rows, texts, strict=True)
        ],
        hoverinfo="text",
        hoverongaps=False,
        xgap=1,
        ygap=1,
    )
    marks = _trace(
        "scatter",
        mode="markers",
        x=[column + 0.36 for _, column in sorted(marked)],
        y=[row - 0.3 for row, _ in sorted(marked)],
        marker={"size": 6, "color": "var(--mark)"},
        hoverinfo="skip",
    )
    height, width = len(rows), len(columns)
    layout = {
        "height": round(min(max(700 / height, 9.0), 30.0) * height) + 110,
        "showlegend": False,
        "coloraxis": {
            "cmin": low,
            "cmax": high if high > low else low + 1,
            "showscale": not caption,
        },
        "xaxis": _names(column_title, columns) | {"range": [-0.5, width - 0.5]},
        "yaxis": _names(row_title, rows) | {"range": [height - 0.5, -0.5]},
    }
    lines = [[name, *line] for name, line in zip(rows, texts, strict=True)]
    table = Table([row_title, *columns], lines)
    traces = [heat, marks] if marked else [heat]
    return Chart(what, traces, layout, table, caption, 220 + 54 * width)


class Point(NamedTuple):
    """One point of a map; its category stands for its colour, -1 for none."""

    position: tuple[float, float]
    text: str
    category: int
    hint: str


def point_chart(
    what: str, categories: Mapping[str, Sequence[Point]], caption: str = ""
) -> Chart:
    """Draw points by the name of their category, with one scale for both axes."""
    traces = [
        _trace(
            "scatter",
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
        for name, members in categories.items()
        for number in [members[0].category]
    ]
    axis = {"zeroline": False, "scaleanchor": "x"}
    layout = {"height": 440, "showlegend": True, "yaxis": axis}
    rows = [
        [point.hint, *(f"{x:.3g}" for x in point.position)]
        for members in categories.values()
        for point in members
    ]
    return Chart(what, traces, layout, Table(["point", "x", "y"], rows), caption)


def _trace(kind: str, **properties: object) -> dict[str, Any]:
    """Make one of Plotly's traces; what is None has Plotly's default."""
    return {"type": kind} | {k: v for k, v in properties.items() if v is not None}


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


def _band(one: Series) -> dict[str, Any]:
    """Draw the area within a line's spread; it ends where fractions do."""
    there = ~np.isnan(one.values)
    at, middle = np.array(one.at)[there], one.values[there]
    half = np.nan_to_num(np.array(one.spread, np.float64))[there]
    edges = np.clip([*(middle + half), *(middle - half)[::-1]], 0, 1)
    return _trace(
        "scatter",
        mode="lines",
        x=[*at.tolist(), *at[::-1].tolist()],
        y=edges.tolist(),
        fill="toself",
        fillcolor=one.colour,
        opacity=0.14,
        line={"width": 0},
        legendgroup=short(one.name),  # it goes with the line in the legend
        showlegend=False,
        hoverinfo="skip",
    )


def _task_bands(tasks: Sequence[int]) -> dict[str, Any]:
    """Draw a band behind every other task, and its name where there is room.

    A single task has none: hidden concepts have no time of their own.
    """
    groups = [(task, len([*rounds])) for task, rounds in groupby(tasks)]
    ends = (np.cumsum([0, *(count for _, count in groups)]) + 0.5).tolist()
    word = "task " if len(groups) <= 12 else ""
    spans = [
        (f"{word}{task}", ends[i], ends[i + 1]) for i, (task, _) in enumerate(groups)
    ]
    if len(spans) < 2:
        return {}
    look = {"fillcolor": "var(--panel)", "line": {"width": 0}, "layer": "below"}
    edges = {"type": "rect", "y0": 0, "y1": 1, "yref": "paper"}
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    shapes = [{**edges, **look, "x0": x, "x1": end} for _, x, end in spans[1::2]]
    names = [
        {**place, "x": (left + right) / 2, "text": name} for name, left, right in spans
    ]
    return {"shapes": shapes, **({"annotations": names} if len(names) <= 40 else {})}


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
