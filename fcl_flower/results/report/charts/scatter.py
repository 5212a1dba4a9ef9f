"""A map of numbered points, the same scale in both directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.html.markup import Markup, join, tag

_SIDE = 360
"""Pixels from the first to the last point, in the direction where they lie widest."""

Positions = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a map.

    Attributes:
        position: its two coordinates.
        number: written in it.
        category: what its colour stands for; below 0: none.
        hint: text shown under the pointer.
    """

    position: tuple[float, float]
    number: int
    category: int
    hint: str


def scatter(points: Sequence[Point], what: str) -> Markup:
    """Return the points with a bar that tells the scale; axes have no meaning.

    Args:
        points: at least one.
        what: description of the picture.
    """
    positions = np.array([point.position for point in points])
    span = float(np.ptp(positions, axis=0).max())
    scale = _SIDE / span if span else 1.0
    radius = min(max(9 * math.sqrt(40 / len(points)), 5.0), 9.0)
    pixels = _apart(positions * (scale, -scale), 2 * radius)
    pixels += radius + 10 - pixels.min(axis=0)
    width, height = (pixels.max(axis=0) + radius + 10).tolist()
    parts: list[str] = [
        tag("rect", x=0, y=0, width=width, height=height, class_="shade")
    ]
    for point, (x, y) in zip(points, pixels.tolist(), strict=True):
        disc = tag(
            "circle",
            tag("title", point.hint),
            cx=x,
            cy=y,
            r=radius - 0.5,
            class_="noise" if point.category < 0 else "point",
            style=f"fill:{plot.category_colour(point.category)}",
        )
        number = tag(
            "text",
            str(point.number),
            x=x,
            y=y + 0.42 * radius,
            text_anchor="middle",
            class_="on-cold" if point.category < 0 else "on-category",
            style=f"font-size:{1.25 * radius:.1f}px",
        )
        parts += [disc, number]
    if span:
        parts.append(_bar(span, scale, height + 18))
    return plot.drawing(max(width, 120), height + 26, parts, what)


def _apart(wanted: Positions, gap: float) -> Positions:
    """Return positions near the wanted ones, no two of them closer than ``gap``.

    A point that would cover an earlier one goes to the nearest free place of a
    hexagonal grid around its own, of which each earlier one covers four at most.
    """
    from scipy.spatial.distance import cdist  # few runs have a map

    steps = math.ceil(math.sqrt(len(wanted)))
    row, column = np.mgrid[-steps : steps + 1, -steps : steps + 1]
    grid = gap * np.stack([column + row % 2 / 2, row * math.sqrt(0.75)], axis=-1)
    grid = grid.reshape(-1, 2)
    grid = grid[np.argsort(np.hypot(*grid.T), kind="stable")]
    placed = np.empty((0, 2))
    for position in wanted:
        offered = position + grid[: 4 * len(placed) + 1]
        free = (cdist(offered, placed) >= gap - 1e-6).all(axis=1)
        placed = np.vstack([placed, offered[np.argmax(free)]])
    return placed


def _bar(span: float, scale: float, y: float) -> Markup:
    """Return a line of a round length below the map, with that length."""
    ticks = plot.ticks(0, span, 5)
    length = ticks[1] * scale
    shown = plot.tick_decimals(ticks)(ticks[1])
    line = tag("path", d=f"M1 {y - 7:.1f}v7h{length:.1f}v-7", class_="bar")
    return join([line, plot.text(shown, length + 10, y, class_="tick")])
