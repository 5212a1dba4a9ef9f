"""The sides of a map of adapters: one row or column for each client and task."""

from collections.abc import Sequence

from fcl_flower.report.heatmap import Label

LEGIBLE = 64
"""Rows or columns up to which every single adapter is shown."""

Place = tuple[int, int]
"""A client and the number of one of its tasks."""


def labels(places: Sequence[Place]) -> list[Label]:
    """Return the number of each task, grouped by client."""
    return [Label(str(task), f"client {client}") for client, task in places]


def cell(columns: int) -> tuple[float, float]:
    """Return width and height in pixels of a cell where there are so many columns."""
    side = min(max(740 / columns, 7.0), 44.0)
    return side, min(side, 26.0)
