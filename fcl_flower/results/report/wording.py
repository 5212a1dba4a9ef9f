"""The wording of pages: one rule of rounding, and tables as plain data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fcl_flower.results.events import About, Summary

LEGIBLE = 64
"""Rows or columns of a matrix up to which all are shown."""
OPEN = 20
"""Rows of a table up to which it is shown without a click."""

MINUS = "\N{MINUS SIGN}"
"""The minus sign, as wide as a plus sign."""

UNKNOWN = "\N{EN DASH}"
"""Stands where nothing was measured, so that it cannot be taken for zero."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table or a tile, with what belongs to it.

    A hint is shown under the pointer, further lines in small type, a swatch of the
    colour before the text; the link is relative to the page.
    """

    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    colour: str = ""
    link: str = ""


Value = str | Cell


@dataclass(frozen=True, slots=True)
class Table:
    """A table, which scrolls by itself when it is wider than the page.

    Its name is for the style sheet; ``words`` columns from the left hold words, the
    rest numbers. Of more rows than ``whole`` the reader sees ``folded``, if that is not
    empty, and clicks on it for the table.
    """

    kind: ClassVar = "table"
    head: Sequence[Value]
    rows: Sequence[Sequence[Value]]
    name: str = ""
    words: int = 1
    folded: str = ""
    whole: int = OPEN


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
    """Format a part of a whole: ``35 %``; 100 % only of all."""
    return f"{math.floor(100 * value + 1e-9)} %"


def with_spread(mean: str, spread: float | None) -> str:
    """Append ``± spread``; nothing where there is no spread."""
    known = spread is not None and not math.isnan(spread)
    return f"{mean} ± {fraction(spread)}" if known else mean


def size(count: float) -> str:
    """Format bytes in decimal units with three significant digits: ``12.3 MB``."""
    for power, name in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        # 999.6 kB would round to "1000 kB": from there on the next unit is used.
        if count >= 0.9995 * 10**power:
            return f"{count / 10**power:#.3g}".rstrip(".") + f" {name}"
    return f"{count:.0f} B"


def size_exact(count: float) -> Cell:
    """Format bytes as `size`, with the exact count under the pointer."""
    return Cell(size(count), f"{count:,.0f} bytes")


def operations(count: float) -> Cell:
    """Format multiply-adds: ``2.52e+12``, with all digits under the pointer."""
    return Cell(f"{count:.3g}", f"{count:,.0f} multiply-adds")


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
    """Say over what a mean is: ``mean over 5 clients``; of one there is no mean."""
    return f"mean over {count:,} {noun}s" if count > 1 else f"of the only {noun}"


# ---- runs


class Measure(NamedTuple):
    """A figure at a summary's ``key``; its meaning may speak of a ``{noun}``."""

    name: str
    key: str
    show: Callable[[float], Value]
    meaning: str

    @property
    def spread(self) -> bool:
        """Whether a standard deviation over seeds says something: not of costs."""
        return self.show in (fraction, signed)

    def of(self, summary: Summary) -> float | None:
        """Look it up; None where it was not measured."""
        found: Any = summary
        for name in self.key.split("."):
            found = None if found is None else getattr(found, name)
        return found if found is None else float(found)


BEFORE = "before_aggregation.average_accuracy"
MEASURES = (
    Measure(
        "Average accuracy",
        "average_accuracy",
        fraction,
        "over all {noun}s at the last test, mean over clients",
    ),
    Measure("Balanced accuracy", "balanced_accuracy", fraction, "classes count alike"),
    Measure(
        "Average incremental accuracy",
        "average_incremental_accuracy",
        fraction,
        "after each task, over all classes so far; mean over tasks",
    ),
    Measure(
        "Task unknown",
        "inferred_task_accuracy",
        fraction,
        "accuracy where the most confident head answers (fcl predict --task auto)",
    ),
    Measure("Before aggregation", BEFORE, fraction, "of what clients have trained"),
    Measure(
        "Learning accuracy", "learning_accuracy", fraction, "of tasks when learned"
    ),
    Measure(
        "Catastrophic forgetting",
        "forgetting",
        fraction,
        "best earlier accuracy minus the final one; less is better",
    ),
    Measure(
        "Backward transfer",
        "backward_transfer",
        signed,
        "final accuracy minus that when learned; more is better",
    ),
    Measure("Macro F1", "macro_f1", fraction, "mean over a task's classes of F1"),
    Measure(
        "Clustering",
        "concepts.ari",
        fraction,
        "adjusted Rand index of the server's clusters, mean over rounds",
    ),
    Measure(
        "Perfect rounds",
        "concepts.perfect_rounds",
        share,
        "of the rounds have just the hidden concepts as clusters",
    ),
    Measure(
        "Matching effectiveness",
        "concepts.effectiveness",
        fraction,
        "fraction of updates that went into the concept model they started from",
    ),
    Measure("Sent up", "bytes_up", size_exact, "in messages of clients"),
    Measure("Sent down", "bytes_down", size_exact, "in messages to clients"),
    Measure("Model size", "model_bytes", size_exact, "what one client must keep"),
    Measure("Peak memory", "peak_memory", size_exact, "of all processes of the server"),
    Measure("Multiply-adds", "multiply_adds", operations, "of clients' training"),
    Measure("Time", "seconds", duration, "from the first round on"),
    Measure("Simulated time", "clock", "{:g}".format, "at the end of the run"),
)
"""The measures of tiles and of a comparison's columns, as far as they are known."""


def steps(about: About) -> str:
    """Say how long a run is: in rounds, or in updates where there are none."""
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


def full_noun(about: About) -> str:
    """Name what ``about.tasks`` counts at its first mention on a page."""
    return "task" if about.hidden is None else "hidden concept"


def untrained(count: int, of: int) -> str:
    """Say how many tasks of clients were tested without training."""
    return (
        f"{count} of {of} client-tasks were never trained on, as their clients took no "
        "part in a round of them; they are tested like all others."
    )
