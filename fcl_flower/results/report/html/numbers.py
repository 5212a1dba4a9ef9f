"""Numbers as a reader wants them: one rounding rule for every page."""

import math

from fcl_flower.results.report.html.content import Cell

MINUS = "\N{MINUS SIGN}"
"""As wide as a plus sign, unlike a hyphen."""

UNKNOWN = "\N{EN DASH}"
"""Stands where nothing was measured, so that it cannot be taken for zero."""


def fraction(value: float | None) -> str:
    """Return an accuracy such as ``0.512``."""
    if value is None or math.isnan(value):
        return UNKNOWN
    text = f"{abs(value):.3f}"
    return f"{MINUS}{text}" if value < 0 and float(text) else text


def signed(value: float | None) -> str:
    """Return a difference of accuracies such as ``+0.021``; no sign on zero."""
    text = fraction(value)
    return f"+{text}" if text[0].isdigit() and float(text) else text


def share(value: float) -> str:
    """Return a part of a whole such as ``35 %``, 100 % only of all."""
    return f"{math.floor(100 * value + 1e-9)} %"


def untrained(count: int, of: int) -> str:
    """Return a sentence on tasks of clients that were tested without training."""
    return (
        f"{count} of {of} client-tasks were never trained on, as their clients took no "
        "part in a round of them; they are tested like all others."
    )


def with_spread(mean: str, spread: float) -> str:
    """Return ``mean ± spread``, or the mean alone where there is no spread."""
    return mean if math.isnan(spread) else f"{mean} ± {fraction(spread)}"


def size(count: float) -> str:
    """Return bytes in decimal units, three significant digits: ``12.3 MB``."""
    power, name = unit(count)
    if not power:
        return f"{count:.0f} B"
    return f"{count / 10**power:#.3g}".rstrip(".") + f" {name}"


def unit(count: float) -> tuple[int, str]:
    """Return the decimal unit that suits a count of bytes: power of ten and name."""
    for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        # 999.6 kB would round to "1000 kB": from there on the next unit is used.
        if count >= 0.9995 * 10**power:
            return power, name
    return 0, "B"


def size_exact(count: float) -> Cell:
    """Return `size` with the exact count of bytes under the pointer."""
    return Cell(size(count), f"{count:,.0f} bytes")


def operations(count: float) -> Cell:
    """Return multiply-adds such as ``2.52e+12``, with all digits under the pointer."""
    return Cell(f"{count:.3g}", f"{count:,.0f} multiply-adds")


def duration(seconds: float) -> str:
    """Return a time such as ``4.2 s``, ``3 min 20 s`` or ``1 h 02 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"


def plural(count: int, noun: str) -> str:
    """Return ``1 client``, ``5 clients`` or ``2 classes``."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def mean_over(count: int, noun: str) -> str:
    """Return ``mean over 5 clients``; of one there is no mean, and that is said."""
    return f"mean over {count:,} {noun}s" if count > 1 else f"of the only {noun}"
