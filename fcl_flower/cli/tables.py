"""A table of many columns in a terminal of few: as several, one below the other."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcl_flower.results.tables import TextTable

GAP = 3
"""Characters between two columns: a space on both sides of what may be a line."""


def print_sheet(console: Console, sheet: TextTable) -> None:
    """Print a table, cut between columns where it is too wide, and its note.

    Each part begins with the first column, which names the rows. No number is cut: a
    terminal that is too narrow for a single column breaks the lines.
    """
    for columns in _parts(sheet, console.width):
        part = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        widths = [_width(sheet, column) for column in columns]
        fits = sum(widths) + GAP * len(widths) <= console.width
        for column, width in zip(columns, widths, strict=True):
            # Words of a head may stand one below the other, a cell is whole.
            least = width if fits else None
            head = Text(sheet.head[column], "bold")
            part.add_column(head, min_width=least, overflow="fold")
        for line in sheet.lines:
            part.add_row(*(Text(line[column]) for column in columns))
        console.print(part)
    console.print(sheet.note, markup=False, highlight=False)


def _parts(sheet: TextTable, most: int) -> Iterator[Sequence[int]]:
    """Yield which columns go into each part, the first into all."""
    first = _width(sheet, 0) + GAP
    part, taken = [0], first
    for column in range(1, len(sheet.head)):
        width = _width(sheet, column) + GAP
        if len(part) > 1 and taken + width > most:
            yield part
            part, taken = [0], first
        part.append(column)
        taken += width
    yield part


def _width(sheet: TextTable, column: int) -> int:
    """Return how wide a column has to be; some characters are as wide as two."""
    cells = (line[column] for line in sheet.lines)
    return max(map(cell_len, (*sheet.head[column].split(), *cells)))


@dataclass
class _Seen:
    """A run that has begun.

    Attributes:
        began: the time of its first progress.
        first: the share of its time that was over then; not 0 if it was resumed.
        share: of its time that is over now.
        latest: the time of that.
    """

    began: float
    first: float
    share: float
    latest: float

    @property
    def whole(self) -> float | None:
        """Seconds that all of it takes, None if that is unknown."""
        done = self.share - self.first
        return (self.latest - self.began) / done if done > 0 else None


class Estimate:
    """Watches several runs, of which some are done at the same time.

    A run takes what those of its variant took that are finished. If there is none, the
    share of its time that is over of one under way says it; if there is none of them
    either, it takes what the other variants do.
    """

    def __init__(
        self, variants: Sequence[Hashable], processes: int, clock: Callable[[], float]
    ) -> None:
        """Watch runs.

        Args:
            variants: of each run, in any order.
            processes: runs at the same time.
            clock: returns seconds since some moment, such as `time.monotonic`.
        """
        self._variants = variants
        self._processes = processes
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._over: set[int] = set()

    def progress(self, run: int, share: float) -> None:
        """Note how far a run is, from 0 to 1 when it is finished.

        Args:
            run: its index among the variants.
            share: of its time that is over, as far as that can be foretold.
        """
        now = self._clock()
        seen = self._seen.setdefault(run, _Seen(now, share, share, now))
        if share != seen.share:
            seen.share, seen.latest = share, now

    def over(self, run: int) -> None:
        """Note that a run has finished or failed."""
        self._over.add(run)

    def left(self) -> float | None:
        """Return the seconds until all are over, None if nothing is known yet."""
        rest = [
            self._left(run)
            for run in range(len(self._variants))
            if run not in self._over
        ]
        if None in rest:
            return None
        known = [seconds for seconds in rest if seconds is not None]
        return max([sum(known) / self._processes, *known], default=0.0)

    def _left(self, run: int) -> float | None:
        whole = self._whole(self._variants[run])
        if whole is None or run not in self._seen:
            return whole
        seen = self._seen[run]
        return max(0.0, whole * (1 - seen.first) - (self._clock() - seen.began))

    def _whole(self, variant: Hashable) -> float | None:
        """Return the seconds that a whole run of a variant takes."""
        of_variant = [
            seen for run, seen in self._seen.items() if self._variants[run] == variant
        ]
        for runs in (of_variant, [*self._seen.values()]):
            for finished in (True, False):
                known = [
                    seen.whole
                    for seen in runs
                    if (seen.share == 1) == finished and seen.whole is not None
                ]
                if known:
                    return fmean(known)
        return None
