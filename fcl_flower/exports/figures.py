"""The charts of a page as files for a paper: SVG and PDF, drawn by Matplotlib.

The report describes each chart as plain data; here the same data are drawn without a
browser, in the page's light colours. Needs Matplotlib to be imported.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fcl_flower.results.report import wording
from fcl_flower.results.report.charts import (
    BarChart,
    Chart,
    LineChart,
    MatrixChart,
    PointChart,
    band,
    category_colour,
    task_spans,
)
from fcl_flower.results.report.page import STYLE

WIDTH = 6.4
"""Of a figure, in inches: about that of a page's text."""
LOOK = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fcl",  # the same figure, the same bytes
    "pdf.fonttype": 42,  # the fonts that publishers take
}
_LIGHT = dict(
    re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", STYLE.partition("@media")[0])
)
_INSIDE = {"ha": "center", "va": "center", "fontsize": "small"}


def write_figures(charts: Sequence[Chart], folder: Path, ending: str) -> list[Path]:
    """Write each chart as ``svg`` or ``pdf``, numbered and named by what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    undated = {"Date": None} if ending == "svg" else {"CreationDate": None}
    paths = []
    for number, chart in enumerate(charts, 1):
        name = re.sub(r"[^a-z0-9]+", "-", chart.what.lower()).strip("-")[:60]
        path = folder / f"{number:02}-{name}.{ending}"
        with rc_context(LOOK):
            draw(chart).savefig(path, metadata=undated, bbox_inches="tight")
        paths.append(path)
    return paths


def draw(chart: Chart) -> Figure:
    """Draw a chart of any kind."""
    figure = Figure(layout="constrained")
    axes, height = figure.add_subplot(), 3.3
    match chart:
        case LineChart():
            _lines(axes, chart)
        case BarChart():
            _bars(axes, chart)
        case MatrixChart():
            _matrix(axes, chart)
            height = max(1.2 + 0.3 * len(chart.rows), 2.0)
        case PointChart():
            _points(axes, chart)
            height = 4.6
    figure.set_size_inches(WIDTH, height)
    if axes.get_legend_handles_labels()[1]:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axes.legend(**place, ncols=2, frameon=False)
    return figure


def _lines(axes: Axes, chart: LineChart) -> None:
    for one in chart.series:
        colour = css(one.colour)
        if one.spread is not None:
            axes.fill(*band(one), color=colour, alpha=0.14, linewidth=0)
        last = wording.fraction(float(one.values[~np.isnan(one.values)][-1]))
        style = "--" if one.dashed else "-"
        look = {"marker": "o" if len(one.at) <= 60 else None, "markersize": 4}
        label = plain(f"{one.name}: {last}")
        axes.plot(one.at, one.values, style, color=colour, label=label, **look)
    if chart.marked:
        marks = [chart.foot] * len(chart.marked)
        look = {"color": css("var(--bad)"), "label": "a reply is missing"}
        axes.plot([*chart.marked], marks, "^", **look)
    step = "task learned last" if chart.step == "task" else chart.step
    axes.set(xlabel=step, ylabel=chart.title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _bands(axes, chart.tasks)


def _bars(axes: Axes, chart: BarChart) -> None:
    feet = np.zeros(len(chart.series[0].at))
    for one in chart.series:
        colours = [one.colour] if isinstance(one.colour, str) else one.colour
        columns = axes.bar(
            one.at,
            np.nan_to_num(one.values),
            0.8 if chart.stacked else 0.5,
            feet if chart.stacked else 0.0,
            yerr=None if one.spread is None else np.nan_to_num(one.spread),
            capsize=3,
            color=[css(colour) for colour in colours],
            label=plain(one.name) if chart.stacked else None,
        )
        feet = feet + np.nan_to_num(one.values)
        if not chart.stacked and one.spread is None:
            axes.bar_label(columns, [*map(wording.fraction, one.values)])
    for one in chart.dots:
        at = [place + 0.33 for place in one.at]
        axes.plot(at, one.values, ".", color=css(str(one.colour)))
    axes.set(xlabel=plain(chart.step), ylabel=plain(chart.title), ylim=chart.span)
    axes.axhline(0, color=css("var(--muted)"), linewidth=0.8)
    if chart.names:
        axes.set_xticks([*chart.series[0].at], [*map(plain, chart.names)])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.stacked:
        axes.yaxis.set_major_formatter(EngFormatter("B"))
    _bands(axes, chart.tasks)


def _matrix(axes: Axes, chart: MatrixChart) -> None:
    low, high = chart.colours
    ends = [css("var(--cold)"), css("var(--hot)")]
    colours = LinearSegmentedColormap.from_list("page", ends)
    look = {"cmap": colours, "vmin": low, "vmax": high, "aspect": "auto"}
    picture = axes.imshow(chart.cells, **look)
    axes.spines[:].set_visible(False)
    if chart.caption:
        axes.set_title(plain(chart.caption), fontsize="small")
    else:
        axes.figure.colorbar(picture, ax=axes)
    for (row, column), value in np.ndenumerate(chart.cells):
        if chart.numbered and not np.isnan(value):
            ink = css("var(--paper)" if value > (low + high) / 2 else "var(--ink)")
            text = plain(chart.texts[row][column])
            axes.text(column, row, text, color=ink, **_INSIDE)
    for row, column in sorted(chart.marked):
        axes.plot(column + 0.36, row - 0.3, ".", color=css("var(--mark)"))
    axes.set(ylabel=plain(chart.titles[0]), xlabel=plain(chart.titles[1]))
    for axis, names in ((axes.yaxis, chart.rows), (axes.xaxis, chart.columns)):
        every = -(-len(names) // 40)
        axis.set_ticks([*range(0, len(names), every)], [*map(plain, names[::every])])


def _points(axes: Axes, chart: PointChart) -> None:
    for name, members in chart.categories.items():
        number = members[0].category
        x, y = zip(*(point.position for point in members), strict=True)
        look = {"color": css(category_colour(number)), "label": plain(name)}
        axes.plot(x, y, "o", markersize=13, **look)
        ink = css("var(--ink)" if number < 0 else "var(--paper)")
        for point in members:
            axes.text(*point.position, plain(point.text), color=ink, **_INSIDE)
    axes.set_aspect("equal", "datalim")
    axes.set_title(plain(chart.caption), fontsize="small")


def _bands(axes: Axes, tasks: Sequence[int]) -> None:
    place = axes.get_xaxis_transform()
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": "small"}
    for number, (name, left, right) in enumerate(task_spans(tasks)):
        if number % 2:
            colour = css("var(--panel)")
            axes.axvspan(left, right, color=colour, linewidth=0, zorder=0)
        axes.text((left + right) / 2, 1, name, transform=place, **look)


def css(colour: str | Sequence[str]) -> str:
    """Look up a colour of a chart: ``var(--name)`` in its light form."""
    name = re.fullmatch(r"var\(--([a-z0-9]+)\)", str(colour))
    return str(colour) if name is None else _LIGHT[name[1]]


def plain(text: str) -> str:
    """Keep a text as it is: a dollar would start a formula, which a name is not."""
    return text.replace("$", r"\$")
