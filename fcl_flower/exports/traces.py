"""Plotly's traces drawn by Matplotlib: those that the report's charts are made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fcl_flower.exports.colours import css, flat
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.html.content import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {"circle": "o", "square": "s", "triangle-up": "^"}
POINTS = 0.75
"""In a pixel."""


def scatter(axes: "Axes", trace: Trace) -> None:
    """Draw lines, markers, numbers in markers, or an area."""
    x, y = values(trace["x"]), values(trace["y"])
    if trace.get("fill") == "toself":
        colour, alpha = css(trace["fillcolor"]), trace["opacity"]
        axes.fill(x, y, color=colour, alpha=alpha, linewidth=0)
        return
    line, marker = trace.get("line", {}), trace.get("marker", {})
    colour = css(marker.get("color") or line.get("color"))
    drawn = "lines" in trace["mode"]
    look: dict[str, Any] = {"color": colour, "linestyle": "none"}
    if drawn:
        look["linestyle"] = "--" if line.get("dash") == "dash" else "-"
    if "markers" in trace["mode"]:
        look["marker"] = MARKERS[marker.get("symbol", "circle")]
        look["markersize"] = marker.get("size", 5) * POINTS
    shown = "name" in trace and trace.get("showlegend", True)
    if "error_x" in trace:
        half = values(trace["error_x"]["array"])
        axes.errorbar(x, y, xerr=np.nan_to_num(half), capsize=3, **look)
    else:
        label = flat(trace["name"]) if shown else None
        axes.plot(x, y, label=label, **look)
    if "text" in trace["mode"]:
        written = css(trace["textfont"]["color"])
        for at, height, text in zip(x, y, trace["text"], strict=True):
            place = {"ha": "center", "va": "center", "fontsize": "small"}
            axes.text(at, height, flat(text), color=written, **place)


def bar(axes: "Axes", trace: Trace, below: dict[float, float] | None) -> None:
    """Draw columns, on top of those below them where they are stacked.

    Args:
        axes: to draw on.
        trace: of bars.
        below: the height so far by place, which this adds to; None where columns stand
            on the zero line.
    """
    x, y = values(trace["x"]), values(trace["y"])
    given = trace["marker"]["color"]
    colours = [css(one) for one in ([given] if isinstance(given, str) else given)]
    feet = [0.0 if below is None else below.get(at, 0.0) for at in x]
    label = flat(trace["name"]) if "name" in trace else None
    width = trace.get("width", 0.8)
    drawn = axes.bar(x, np.nan_to_num(y), width, feet, color=colours, label=label)
    if below is None:
        axes.axhline(0, color=css("var(--muted)"), linewidth=0.8)
        axes.bar_label(drawn, [flat(text) for text in trace["text"]] or None)
    else:
        for at, height in zip(x, y, strict=True):
            below[at] = below.get(at, 0.0) + height


def heatmap(axes: "Axes", trace: Trace, shared: Trace) -> None:
    """Draw a matrix as cells, with the numbers that the page writes into them.

    Args:
        axes: to draw on.
        trace: of cells.
        shared: the chart's colour axis; empty where the trace has its own colours.
    """
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    z = np.array([values(row) for row in trace["z"]])
    if shared:
        ends = [css("var(--cold)"), css("var(--hot)")]
        colours: Any = LinearSegmentedColormap.from_list("page", ends)
        limits = shared["cmin"], shared["cmax"]
    else:
        colours = ListedColormap(
            [css(colour) for _, colour in trace["colorscale"][::2]]
        )
        limits = trace["zmin"], trace["zmax"]
    picture = axes.imshow(
        z, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto"
    )
    axes.spines[:].set_visible(False)
    if shared.get("showscale"):
        axes.figure.colorbar(picture, ax=axes)
    if trace["texttemplate"]:
        texts = trace.get("text") or [[f"{v:.3f}" for v in row] for row in z]
        middle = sum(limits) / 2
        for (row, column), value in np.ndenumerate(z):
            if not np.isnan(value):
                ink = css("var(--paper)" if shared and value > middle else "var(--ink)")
                place = {"ha": "center", "va": "center", "fontsize": "small"}
                axes.text(column, row, flat(texts[row][column]), color=ink, **place)


def values(given: Sequence[float | None]) -> Accuracy:
    """Return numbers as an array, NaN where there is none."""
    return np.array([np.nan if one is None else one for one in given], np.float64)
