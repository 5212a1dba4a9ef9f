"""The wording of pages: the rules of rounding, and tables as plain data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fcl_flower.results.events import About

LEGIBLE = 64
"""The number of rows or columns up to which a matrix is shown whole."""

MINUS = "\N{MINUS SIGN}"
"""The minus sign, as wide as a plus sign."""

UNKNOWN = "\N{EN DASH}"
"""The sign for what was not measured, which nobody takes for zero."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A text of a table or a tile, with its decoration.

    Attributes:
        hint: text under the pointer.
        lines: further lines in small type.
        colour: colour of a swatch before the text.
        link: address relative to the page.
    """

    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    colour: str = ""
    link: str = ""


Value = str | Cell


@dataclass(frozen=True, slots=True)
class Table:
    """A table, which scrolls by itself where it is wider than the page.

    Attributes:
        name: class for the style sheet.
        words: number of columns, from the left, that hold words; the others hold
            numbers.
        folded: text in place of a table with many rows, on which the reader clicks;
            empty for a table that is always shown.
    """

    kind: ClassVar = "table"
    open_up_to: ClassVar = 20
    head: Sequence[Value]
    rows: Sequence[Sequence[Value]]
    name: str = ""
    words: int = 1
    folded: str = ""


# ---- numbers


def fraction(value: float | None) -> str:
    """Format an accuracy: ``0.512``."""
    if value is None or math.isnan(value):
        return UNKNOWN
    text = f"{abs(value):.3f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text


def signed(value: float | None) -> str:
    """Format a difference of accuracies: ``+0.021``; no sign on zero."""
    text = fraction(value)
    return f"+{text}" if text[0].isdigit() and float(text) else text


def share(value: float) -> str:
    """Format a part of a whole, rounded down: ``35 %``."""
    return f"{math.floor(100 * value + 1e-9)} %"


def with_spread(mean: str, spread: float | None) -> str:
    """Append ``± spread`` where there is a spread."""
    known = spread is not None and not math.isnan(spread)
    return f"{mean} ± {fraction(spread)}" if known else mean


def size(count: float) -> str:
    """Format bytes in decimal units with three significant digits: ``12.3 MB``."""
    for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        # From 999.5 kB on the next unit is used, as "1000 kB" has four digits.
        if count >= 0.9995 * 10**power:
            return f"{count / 10**power:#.3g}".rstrip(".") + f" {name}"
    return f"{count:.0f} B"


def size_exact(count: float) -> Cell:
    """Format bytes as `size`, with the exact count under the pointer."""
    return Cell(size(count), f"{count:,.0f} bytes")


def duration(seconds: float) -> str:
    """Format a time: ``4.2 s``, ``3 min 20 s`` or ``1 h 02 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"


def plural(count: int, noun: str) -> str:
    """Count a noun: ``1 client``, ``5 clients`` or ``2 classes``."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def mean_over(count: int, noun: str) -> str:
    """Name a mean: ``mean over 5 clients``, or ``of the only client``."""
    return f"mean over {count:,} {noun}s" if count > 1 else f"of the only {noun}"


# ---- runs


FORMS: dict[str, Callable[[float], Value]] = {
    "fraction": fraction,
    "gain": signed,
    "share": share,
    "bytes": size_exact,
    "count": "{:.3g}".format,
    "duration": duration,
    "number": "{:g}".format,
}
"""The ways to write a measure (`tables.Measure.form`)."""


def steps(about: About) -> str:
    """Count the rounds of a run, or the updates of an asynchronous run."""
    synchronous = about.mode == "synchronous"
    step = "round" if synchronous else "asynchronous update"
    return plural(about.total_rounds, step)


def data(about: About) -> str:
    """Name the data sets and the scenario of a run."""
    if not about.dataset:
        return "the clients' local data"
    return f"{about.dataset} ({about.scenario})"


def noun(about: About) -> str:
    """Name what ``about.tasks`` counts."""
    return "task" if about.hidden is None else "concept"


def untrained(count: int, total: int) -> str:
    """Say how many tasks of clients were tested without training."""
    return (
        f"{count} of {total} client-tasks were never trained on, as their clients took "
        "no part in a round of them; they are tested like all others."
    )
