"""Tables for a terminal that is narrower than they are."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcl_flower.results.tables import TextTable

GAP = 3
"""The characters between two columns: a space, perhaps a line, and a space."""


def print_sheet(console: Console, sheet: TextTable) -> None:
    """Print a table and its note; a table that is too wide is cut between columns.

    The parts stand one below the other. Each begins with the first column, which names
    the rows. If a single column is too wide, the terminal breaks its lines.
    """
    for columns in _parts(sheet, console.width):
        part = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        widths = [_width(sheet, column) for column in columns]
        fits = sum(widths) + GAP * len(widths) <= console.width
        for column, width in zip(columns, widths, strict=True):
            # The words of a head may stand one below the other; cells stay whole.
            least = width if fits else None
            head = Text(sheet.head[column], "bold")
            part.add_column(head, min_width=least, overflow="fold")
        for line in sheet.lines:
            part.add_row(*(Text(line[column]) for column in columns))
        console.print(part)
    console.print(sheet.note, markup=False, highlight=False)


def _parts(sheet: TextTable, most: int) -> Iterator[Sequence[int]]:
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
    cells = (line[column] for line in sheet.lines)
    return max(map(cell_len, (*sheet.head[column].split(), *cells)))
