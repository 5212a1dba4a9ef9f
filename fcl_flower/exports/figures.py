"""The charts of a page as files for a paper: SVG and PDF, drawn by Matplotlib.

Plotly needs a browser for that. The colours are the light ones of the page. An import
of this file needs Matplotlib.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fcl_flower.results.report.charts import (
    Cells,
    Chart,
    Lines,
    PointMap,
    category_colour,
    category_ink,
    ticks,
)
from fcl_flower.results.report.page import STYLE

WIDTH = 6.4
"""The width of a figure in inches, which is about that of a page's text."""
PIXELS = 100
"""The number of a chart's pixels that become an inch of a figure's height."""
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
    """Write each chart as ``svg`` or ``pdf``, with its number and title as name."""
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
    """Draw a chart with the numbers that the page shows."""
    figure = Figure((WIDTH, max(chart.height / PIXELS, 2.0)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(plain(chart.caption), fontsize="small")
    if isinstance(chart, Cells):
        _cells(axes, chart)
        return figure
    if isinstance(chart, Lines):
        _lines(axes, chart)
    else:
        _points(axes, chart)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
    axes.legend(**below, ncols=2, frameon=False)
    return figure


def _lines(axes: Axes, chart: Lines) -> None:
    axes.set(xlabel=chart.x_title, ylabel=plain(chart.title))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for line in chart.series:
        colour = css(line.colour)
        if line.spread is not None:
            axes.fill_between(*line.band, color=colour, alpha=0.14, linewidth=0)
        axes.plot(
            line.at,
            line.values,
            color=colour,
            label=plain(line.legend),
            linestyle="--" if line.dashed else "-",
            marker="o" if len(line.at) <= 60 else "",
            markersize=4,
        )


def _points(axes: Axes, chart: PointMap) -> None:
    axes.set_aspect("equal", "datalim")
    for name, members in chart.categories.items():
        x, y = zip(*(point.position for point in members), strict=True)
        category = members[0].category
        colour, ink = css(category_colour(category)), css(category_ink(category))
        axes.plot(x, y, "o", color=colour, label=plain(name), markersize=13)
        for point in members:
            axes.text(*point.position, plain(point.text), color=ink, **_INSIDE)


def _cells(axes: Axes, chart: Cells) -> None:
    (low, high), texts = chart.ends, chart.texts
    ends = [css("var(--cold)"), css("var(--hot)")]
    scale = LinearSegmentedColormap.from_list("page", ends)
    picture = axes.imshow(chart.cells, cmap=scale, vmin=low, vmax=high, aspect="auto")
    axes.spines[:].set_visible(False)
    axes.set(xlabel=plain(chart.titles[1]), ylabel=plain(chart.titles[0]))
    for axis, names in ((axes.xaxis, chart.columns), (axes.yaxis, chart.rows)):
        places, shown = ticks(names)
        axis.set_ticks(places, [*map(plain, shown)])
    axes.figure.colorbar(picture, ax=axes)
    for (row, column), value in np.ndenumerate(chart.cells):
        if chart.numbered and not np.isnan(value):
            ink = css("var(--paper)" if value > (low + high) / 2 else "var(--ink)")
            axes.text(column, row, texts[row][column], color=ink, **_INSIDE)
    for row, column in chart.marked:
        dot = css("var(--mark)")
        axes.plot(column + 0.36, row - 0.3, "o", color=dot, markersize=4)


def css(colour: str) -> str:
    """Look up a colour of the page: ``var(--name)`` in its light form."""
    name = re.fullmatch(r"var\(--([a-z0-9]+)\)", colour)
    return colour if name is None else _LIGHT[name[1]]


def plain(text: str) -> str:
    """Escape a dollar, which would start a formula."""
    return text.replace("$", r"\$")
