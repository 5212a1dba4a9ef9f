"""Heat maps: a matrix as coloured cells, with numbers where there is room."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.charts.plot import CHARACTER
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.markup import Markup, join, tag


@dataclass(frozen=True, slots=True)
class Label:
    """One row or column: its short name, and the group that it belongs to."""

    name: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """What the rows or the columns of a matrix are.

    Attributes:
        title: of all.
        labels: one for each.
        first: number of the first, which decides which are named where not all can
            be.
    """

    title: str
    labels: Sequence[Label]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Colours for amounts, from the palest to the strongest.

    Attributes:
        low: value of the palest colour.
        high: value of the strongest colour; above ``low``.
        cell: width and height of a cell in pixels.
        legend: whether the colours are explained beside the matrix.
    """

    low: float
    high: float
    cell: tuple[float, float]
    legend: bool = True

    @property
    def shows_numbers(self) -> bool:
        """Return whether a cell has room for a number such as ``0.512``."""
        return self.cell[0] >= 38 and self.cell[1] >= 16

    def colour(self, value: float) -> str:
        """Return the colour of a cell."""
        share = 100 * self._share(value)
        return f"color-mix(in oklab,var(--hot) {share:.0f}%,var(--cold))"

    def number(self, value: float) -> tuple[str, str]:
        """Return the number in a cell, and the class of its ink."""
        ink = "on-hot" if self._share(value) > 0.72 else "on-cold"
        return numbers.fraction(value), ink

    def _share(self, value: float) -> float:
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Categories:
    """Colours for numbers of categories, which have no order; below 0: none.

    Attributes:
        cell: width and height of a cell in pixels.
    """

    cell: tuple[float, float]

    @property
    def shows_numbers(self) -> bool:
        """Return whether a cell has room for a number such as ``12``."""
        return self.cell[0] >= 16 and self.cell[1] >= 16

    def colour(self, value: float) -> str:
        """Return the colour of a cell."""
        return plot.category_colour(int(value))

    def number(self, value: float) -> tuple[str, str]:
        """Return the number in a cell, and the class of its ink."""
        if value < 0:
            return numbers.UNKNOWN, "on-cold"
        return f"{value:.0f}", "on-category"


def heat_map(
    values: Accuracy,
    rows: Axis,
    columns: Axis,
    look: Look | Categories,
    hint: Callable[[int, int], str],
    what: str,
    marked: Collection[tuple[int, int]] = (),
) -> Markup:
    """Return the matrix as a picture; a NaN leaves its cell empty.

    Args:
        values: shape (rows, columns).
        rows: from top to bottom.
        columns: from left to right.
        look: colours and sizes.
        hint: text shown under the pointer on a cell, by row and column.
        what: description of the picture.
        marked: cells that bear a dot.
    """
    width, height = look.cell
    names = max(len(label.name) for label in rows.labels)
    groups = max(len(label.group) for label in rows.labels)
    left = 6 + CHARACTER * (names + groups) + (8 if groups else 0)
    top = 22.0
    parts = [
        _cell(values[r, c], left + c * width, top + r * height, look, hint(r, c))
        for r, c in np.argwhere(~np.isnan(values)).tolist()
    ]
    parts += [
        _mark(left + c * width, top + r * height, look) for r, c in sorted(marked)
    ]
    right, bottom = left + width * len(columns.labels), top + height * len(rows.labels)
    parts.append(_row_labels(rows, left, top, right, height))
    parts.append(_column_labels(columns, left, top, bottom, width))
    foot = bottom + (56 if any(label.group for label in columns.labels) else 40)
    room = CHARACTER * max(len(columns.title) + left / CHARACTER, len(rows.title))
    if isinstance(look, Look) and look.legend:
        parts.append(_legend(look, right + 24, top, bottom))
        right += 90
    return plot.drawing(max(right, room) + 8, foot + 4, parts, what)


def _cell(
    value: float, x: float, y: float, look: Look | Categories, hint: str
) -> Markup:
    width, height = look.cell
    # The hairline between cells is left out where it would eat the cell.
    seam = 1 if width >= 10 else 0
    cell = plot.box(x, y, width - seam, height - seam, look.colour(value), hint)
    if not look.shows_numbers:
        return cell
    shown, ink = look.number(float(value))
    middle = x + (width - seam) / 2
    return join([cell, plot.text(shown, middle, y + height / 2 + 4, "middle", ink)])


def _mark(x: float, y: float, look: Look | Categories) -> Markup:
    """Return a dot in the middle of a cell, or in its corner beside a number."""
    width, height = look.cell
    if look.shows_numbers:
        return tag("circle", cx=x + width - 5, cy=y + 4.5, r=3, class_="mark")
    return tag("circle", cx=x + width / 2, cy=y + height / 2, r=2.2, class_="mark")


def _row_labels(
    rows: Axis, left: float, top: float, right: float, height: float
) -> Markup:
    """Return names beside the rows, thinned if crowded, and groups with hairlines."""
    every = math.ceil(13 / height)
    parts = [
        plot.text(label.name, left - 6, top + (r + 0.5) * height + 4, "end", "tick")
        for r, label in enumerate(rows.labels)
        if r % every == 0
    ]
    start = 0
    for group, members in groupby(rows.labels, lambda label: label.group):
        count = len(list(members))
        names = max(len(label.name) for label in rows.labels)
        x = left - 14 - CHARACTER * names
        middle = top + (start + count / 2) * height + 4
        if group:
            parts.append(plot.text(group, x, middle, "end", "tick"))
        if start:
            y = top + start * height - 0.5
            parts.append(tag("line", x1=left - 12, x2=right, y1=y, y2=y, class_="seam"))
        start += count
    parts.append(plot.text(rows.title, 0, 11, class_="axis"))
    return join(parts)


def _column_labels(
    columns: Axis, left: float, top: float, bottom: float, width: float
) -> Markup:
    """Return names below the columns, thinned if crowded, and groups under them."""
    longest = max(len(label.name) for label in columns.labels)
    first, count = columns.first, len(columns.labels)
    fits = int(count * width / (CHARACTER * longest + 5))
    parts = []
    for number in plot.whole_ticks(first, first + count - 1, fits):
        name = columns.labels[number - first].name
        x = left + (number - first + 0.5) * width
        parts.append(plot.text(name, x, bottom + 15, "middle", "tick"))
    start = 0
    grouped = any(label.group for label in columns.labels)
    for group, members in groupby(columns.labels, lambda label: label.group):
        count = len(list(members))
        middle = left + (start + count / 2) * width
        # Where "client 12" is too long, the axis' title explains a bare "12".
        whole = CHARACTER * len(group) < count * width
        name = group if whole else group.rsplit(" ", 1)[-1]
        if name:
            parts.append(plot.text(name, middle, bottom + 31, "middle", "tick"))
        if start:
            x = left + start * width - 0.5
            parts.append(tag("line", x1=x, x2=x, y1=top, y2=bottom + 12, class_="seam"))
        start += count
    y = bottom + (52 if grouped else 35)
    parts.append(plot.text(columns.title, left, y, class_="axis"))
    return join(parts)


def _legend(look: Look, x: float, top: float, bottom: float) -> Markup:
    """Return a ladder of colours with the values of its ends, beside the matrix."""
    steps, span = 20, look.high - look.low
    height = min((bottom - top) / steps, 5)
    parts: list[str] = [
        tag(
            "rect",
            x=x,
            y=top + (steps - 1 - i) * height,
            width=12,
            height=height + 0.5,
            style=f"fill:{look.colour(look.low + i / (steps - 1) * span)}",
        )
        for i in range(steps)
    ]
    parts.append(plot.text(f"{look.high:.2f}", x + 18, top + 10, class_="tick"))
    parts.append(
        plot.text(f"{look.low:.2f}", x + 18, top + steps * height, class_="tick")
    )
    return join(parts)
