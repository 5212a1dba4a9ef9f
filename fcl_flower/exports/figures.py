"""The charts of a page as files for a paper: SVG and PDF, drawn by Matplotlib.

A chart is data for Plotly. Here it is drawn without a browser, in the page's light
colours. An import of this file needs Matplotlib.
"""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fcl_flower.results.report.charts import Chart
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
MARKERS = {"lines": "", "lines+markers": "o", "markers": ".", "markers+text": "o"}
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
    """Draw a chart as Plotly does, with those properties that `charts` uses."""
    layout = chart.layout
    size = WIDTH, max(layout["height"] / PIXELS, 2.0)
    figure = Figure(size, layout="constrained")
    axes, feet = figure.add_subplot(), np.zeros(1)
    for trace in chart.traces:
        if trace["type"] == "bar":
            feet = _bar(axes, trace, feet)
        elif trace["type"] == "heatmap":
            _cells(axes, trace, layout["coloraxis"])
        else:
            _scatter(axes, trace)
    _axes(axes, layout)
    axes.set_title(plain(chart.caption), fontsize="small")
    if layout["showlegend"]:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axes.legend(**below, ncols=2, frameon=False)
    return figure


def _axes(axes: Axes, layout: Mapping[str, Any]) -> None:
    """Name both axes, and draw the bands of the tasks."""
    xaxis, yaxis = layout.get("xaxis", {}), layout["yaxis"]
    for axis, about in ((axes.xaxis, xaxis), (axes.yaxis, yaxis)):
        if "title" in about:
            axis.set_label_text(plain(about["title"]["text"]))
        if "ticktext" in about:
            axis.set_ticks(about["tickvals"], [*map(plain, about["ticktext"])])
        elif axis is axes.xaxis and about:
            axis.set_major_locator(MaxNLocator(integer=True))
        if "tickformat" in about:
            axis.set_major_formatter(EngFormatter("B"))
    axes.set(xlim=xaxis.get("range"), ylim=yaxis.get("range"))
    if "scaleanchor" in yaxis:
        axes.set_aspect("equal", "datalim")
    for band in layout.get("shapes", ()):
        colour = css(band["fillcolor"])
        axes.axvspan(band["x0"], band["x1"], color=colour, linewidth=0, zorder=0)
    above = {"ha": "center", "va": "bottom", "fontsize": "small"}
    for name in layout.get("annotations", ()):
        place = axes.get_xaxis_transform()
        axes.text(name["x"], 1, name["text"], transform=place, **above)


def _scatter(axes: Axes, trace: Mapping[str, Any]) -> None:
    x, y = _numbers(trace["x"]), _numbers(trace["y"])
    if "fill" in trace:
        look = {"color": css(trace["fillcolor"]), "alpha": trace["opacity"]}
        axes.fill(x, y, **look, linewidth=0)
        return
    line, marker = trace.get("line"), trace.get("marker", {})
    triangle = marker.get("symbol") == "triangle-up"
    axes.plot(
        x,
        y,
        color=css(line["color"] if line else marker["color"]),
        label=plain(trace["name"]) if "name" in trace else None,
        linestyle=("--" if line["dash"] == "dash" else "-") if line else "",
        marker="^" if triangle else MARKERS[trace["mode"]],
        markersize=4 if line else 13 if "text" in trace else 6,
    )
    for left, up, text in zip(x, y, trace.get("text", ()), strict=False):
        ink = css(trace["textfont"]["color"])
        axes.text(left, up, plain(text), color=ink, **_INSIDE)


def _bar(
    axes: Axes, trace: Mapping[str, Any], feet: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Draw columns that start at ``feet``; return the ends of the columns."""
    heights, colour = np.nan_to_num(_numbers(trace["y"])), trace["marker"]["color"]
    columns = axes.bar(
        trace["x"],
        heights,
        trace.get("width", 0.8),
        feet,
        yerr=np.nan_to_num(_numbers(trace["error_y"]["array"]))
        if "error_y" in trace
        else None,
        capsize=3,
        color=[css(one) for one in ([colour] if isinstance(colour, str) else colour)],
        label=plain(trace["name"]),
    )
    if "text" in trace:
        axes.bar_label(columns, trace["text"])
    axes.axhline(0, color=css("var(--muted)"), linewidth=0.8)
    return feet + heights


def _cells(axes: Axes, trace: Mapping[str, Any], colours: Mapping[str, Any]) -> None:
    low, high = colours["cmin"], colours["cmax"]
    ends = [css("var(--cold)"), css("var(--hot)")]
    scale = LinearSegmentedColormap.from_list("page", ends)
    cells = np.array([*map(_numbers, trace["z"])])
    picture = axes.imshow(cells, cmap=scale, vmin=low, vmax=high, aspect="auto")
    axes.spines[:].set_visible(False)
    if colours["showscale"]:
        axes.figure.colorbar(picture, ax=axes)
    for (row, column), value in np.ndenumerate(cells):
        if trace["texttemplate"] and not np.isnan(value):
            ink = css("var(--paper)" if value > (low + high) / 2 else "var(--ink)")
            text = plain(trace["text"][row][column])
            axes.text(column, row, text, color=ink, **_INSIDE)


def _numbers(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    return np.array(values, np.float64)  # None becomes NaN


def css(colour: str) -> str:
    """Look up a colour of the page: ``var(--name)`` in its light form."""
    name = re.fullmatch(r"var\(--([a-z0-9]+)\)", colour)
    return colour if name is None else _LIGHT[name[1]]


def plain(text: str) -> str:
    """Undo Plotly's escapes; a dollar gets one, as it would start a formula."""
    return html.unescape(text).replace("$", r"\$")
