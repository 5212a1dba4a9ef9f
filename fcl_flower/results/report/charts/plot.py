"""Panels, scales and axes in SVG. Colours come from the page's style sheet."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.markup import Markup, join, number, tag

CHARACTER = 6.4
"""Width of one character of a label in pixels: how much room a text is given."""

LONGEST = 34
"""Characters of a name that a picture has room for."""

WIDTH = 960
"""Width of a wide picture in pixels; narrower pages scale it down."""

LEFT = 64
"""Room for the labels of the y axis."""

TOP = 34
"""Room for the title of the y axis, which stands above it."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``[low, high]`` linearly to pixels ``[start, end]``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of ``value``."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, at_most: int = 6) -> list[float]:
    """Return round numbers that enclose ``[low, high]``, in equal steps.

    Args:
        low: smallest value shown.
        high: largest value shown; may equal ``low``.
        at_most: number of steps wanted, at least 1.
    """
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / at_most))
    step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= at_most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def whole_ticks(low: int, high: int, at_most: int) -> list[int]:
    """Return whole numbers within ``[low, high]`` in equal steps, for counted things.

    Args:
        low: first number, always shown.
        high: last number that may be shown.
        at_most: how many labels there is room for, at least 1.
    """
    count = high - low + 1
    step = next(
        m * 10**power
        for power in range(20)
        for m in (1, 2, 5)
        if math.ceil(count / (m * 10**power)) <= max(at_most, 1)
    )
    rounded = [i for i in range(low, high + 1) if i % step == 0]
    return rounded if low in rounded else [low, *(i for i in rounded if i > low)]


def spread_out(
    wanted: Sequence[float], gap: float, low: float, high: float
) -> list[float]:
    """Return positions near the wanted ones, at least ``gap`` apart, in the same order.

    Labels at the right end of lines use it. They stay within ``[low, high]`` as long
    as there is room.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = dict.fromkeys(order, low)
    floor = low
    for i in order:
        placed[i] = floor = max(wanted[i], floor)
        floor += gap
    ceiling = high
    for i in reversed(order):
        placed[i] = ceiling = min(placed[i], ceiling)
        ceiling -= gap
    return [placed[i] for i in range(len(wanted))]


def short(name: str) -> str:
    """Return a name that fits beside a picture, with an ellipsis where it was cut."""
    return (
        name
        if len(name) <= LONGEST
        else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def category_colour(category: int) -> str:
    """Return one of eight colours for things without an order, in turn.

    A number below 0 stands for nothing and has the palest colour.
    """
    return "var(--cold)" if category < 0 else f"var(--c{category % 8})"


def text(
    content: str,
    x: float,
    y: float,
    anchor: str = "start",
    class_: str | None = None,
) -> Markup:
    """Return one line of text with its baseline at ``y``."""
    return tag(
        "text",
        content,
        x=x,
        y=y,
        text_anchor=None if anchor == "start" else anchor,
        class_=class_,
    )


def path(points: Iterable[Point], colour: str, class_: str) -> Markup:
    """Return a line through the points, interrupted where y is NaN.

    A point alone between two gaps is drawn as a dot: the round cap of a line of no
    length.
    """
    commands: list[str] = []
    pen_down = False
    for x, y in points:
        if math.isnan(y):
            pen_down = False
            continue
        commands.append(
            f"{'L' if pen_down else 'M'}{number(x)} {number(y)}"
            f"{'' if pen_down else 'h0'}"
        )
        pen_down = True
    return tag("path", d="".join(commands), class_=class_, style=f"stroke:{colour}")


def dot(x: float, y: float, colour: str, hint: str, radius: float = 3) -> Markup:
    """Return a disc with ``hint`` shown under the pointer."""
    return tag(
        "circle", tag("title", hint), cx=x, cy=y, r=radius, style=f"fill:{colour}"
    )


def box(
    x: float, y: float, width: float, height: float, colour: str, hint: str
) -> Markup:
    """Return a filled rectangle with a hint."""
    return tag(
        "rect",
        tag("title", hint),
        x=x,
        y=y,
        width=width,
        height=height,
        style=f"fill:{colour}",
    )


@dataclass(frozen=True, slots=True)
class Panel:
    """The area of a plot: ``x`` and ``y`` map data to pixels."""

    x: Scale
    y: Scale

    def y_axis(
        self, values: Sequence[float], label: Callable[[float], str], title: str
    ) -> Markup:
        """Return grid lines with their labels, and the axis' title above them."""
        lines = (
            tag(
                "line",
                x1=self.x.start,
                x2=self.x.end,
                y1=self.y(value),
                y2=self.y(value),
                class_="zero" if value == 0 else "grid",
            )
            for value in values
        )
        labels = (
            text(label(value), self.x.start - 8, self.y(value) + 4, "end", "tick")
            for value in values
        )
        heading = text(title, 0, self.y.end - 19, class_="axis")
        return join([*lines, *labels, heading])

    def x_axis(
        self, values: Sequence[float], label: Callable[[float], str], title: str
    ) -> Markup:
        """Return tick labels below the panel and the axis' title under them."""
        bottom = self.y.start
        labels = (
            text(label(value), self.x(value), bottom + 18, "middle", "tick")
            for value in values
        )
        middle = (self.x.start + self.x.end) / 2
        heading = text(title, middle, bottom + 38, "middle", "axis")
        return join([*labels, heading])


def drawing(width: float, height: float, parts: Iterable[str], what: str) -> Markup:
    """Return an SVG picture; ``what`` describes it to those who cannot see it."""
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {number(width)} {number(height)}",
        # Never below two thirds: on a phone the section scrolls instead.
        style=f"max-width:{number(width)}px;min-width:{number(width * 2 / 3)}px",
        role="img",
        aria_label=what,
    )


def tick_sizes(values: Sequence[float]) -> Callable[[float], str]:
    """Return a format of bytes with one unit and one precision for all ticks."""
    power, unit = numbers.unit(max(values))
    scaled = tick_decimals([value / 10**power for value in values])
    return lambda value: f"{scaled(value / 10**power)} {unit}"


def tick_decimals(values: Sequence[float]) -> Callable[[float], str]:
    """Return a format with just the decimals that the steps between ticks need."""
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return lambda value: f"{value:.{decimals}f}".replace("-", numbers.MINUS)
