"""The charts of a page as files for a paper: SVG and PDF, drawn by Matplotlib.

A chart is described once, by the report, for Plotly; here the same description is drawn
without a browser, in the page's light colours. Needs Matplotlib to be imported.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from fcl_flower.core.errors import extra
from fcl_flower.exports import traces
from fcl_flower.exports.colours import css, flat
from fcl_flower.results.report.html.content import Chart, Trace

with extra("figures", "format svg or pdf"):
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator, MultipleLocator

WIDTH = 6.4
"""Of a figure, in inches: about that of a page's text."""
PIXELS = 96
"""Of a chart's height, in an inch."""
LOOK = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fcl",  # the same figure, the same bytes
    "pdf.fonttype": 42,  # the fonts that publishers take
}


def write_figures(charts: Sequence[Chart], folder: Path, ending: str) -> list[Path]:
    """Write each chart as a file, numbered and named by what it shows.

    Args:
        charts: of a page.
        folder: made if it is not there.
        ending: ``svg`` or ``pdf``.
    """
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
    """Return a chart as a figure of Matplotlib."""
    height = max(chart.layout["height"] / PIXELS, 1.2)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    layout = chart.layout
    stacked: dict[float, float] | None = (
        {} if layout.get("barmode") == "stack" else None
    )
    for one in chart.traces:
        if one["type"] == "bar":
            traces.bar(axes, one, stacked)
        elif one["type"] == "heatmap":
            traces.heatmap(axes, one, layout.get("coloraxis", {}))
        else:
            traces.scatter(axes, one)
    _bands(axes, layout)
    _axis(axes, "x", layout.get("xaxis", {}))
    _axis(axes, "y", layout.get("yaxis", {}))
    if layout.get("yaxis", {}).get("scaleanchor"):
        axes.set_aspect("equal", "datalim")
    if layout.get("showlegend", True) and axes.get_legend_handles_labels()[1]:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False
        )
    if chart.caption:
        axes.set_title(flat(chart.caption), fontsize="small")
    return figure


def _axis(axes: Axes, which: str, wanted: Trace) -> None:
    """Give an axis its title, its range and its ticks."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(flat(wanted.get("title", {}).get("text", "")))
    limit = axes.set_xlim if which == "x" else axes.set_ylim
    rule = axes.axvline if which == "x" else axes.axhline
    if "ticktext" in wanted:
        axis.set_ticks(wanted["tickvals"], [flat(text) for text in wanted["ticktext"]])
    elif "tickvals" in wanted:
        axis.set_ticks(wanted["tickvals"])
    elif "dtick" in wanted:
        axis.set_major_locator(MultipleLocator(wanted["dtick"]))
    elif wanted.get("title", {}).get("text") in {"round", "task"}:
        axis.set_major_locator(MaxNLocator(integer=True))
    if wanted.get("tickformat") == "~s":
        axis.set_major_formatter(EngFormatter(wanted["ticksuffix"]))
    if "range" in wanted:
        limit(*wanted["range"])
    if wanted.get("zeroline"):
        rule(0, color=css("var(--muted)"), linewidth=0.8)


def _bands(axes: Axes, layout: Trace) -> None:
    """Draw what lies behind the lines: every other task, and its number above."""
    for band in layout.get("shapes", ()):
        colour = css(band["fillcolor"])
        axes.axvspan(band["x0"], band["x1"], color=colour, linewidth=0, zorder=0)
    for note in layout.get("annotations", ()):
        place = axes.get_xaxis_transform()
        look = {"ha": "center", "va": "bottom", "fontsize": "small"}
        axes.text(note["x"], note["y"], flat(note["text"]), transform=place, **look)
