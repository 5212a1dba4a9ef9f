"""A heat map over pairs of tasks of different clients, summed up where it is too large.

Serves every section with a value for a client's task and the adapter of another one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results.diagnostics.base import TaskId
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.heatmap import Axis, heat_map
from fcl_flower.results.report.html.content import Chart

LEGIBLE = 64
"""Rows or columns up to which every single adapter is shown, and then clients."""
SOURCES = 256
"""Columns of a part of the clients: those who are compared with most of its rows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One value.

    Attributes:
        task: of the client that receives adapters; the row.
        source: the task of another client; the column.
        value: finite.
        marked: bears a dot.
        hint: returns what is shown under the pointer; called for a cell that is shown.
    """

    task: TaskId
    source: TaskId
    value: float
    marked: bool
    hint: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Wording:
    """The words around a matrix: titles of its sides, description, and a note."""

    rows: str
    columns: str
    what: str
    note: str


def adapter_matrix(
    cells: Sequence[Pair],
    by_task: Wording,
    by_client: Wording,
    client_hint: Callable[[int, int, float, Sequence[Pair]], str],
    limits: Callable[[Accuracy], tuple[float, float]],
) -> tuple[Chart, str]:
    """Return the picture of the cells and the note that goes with it.

    Args:
        cells: at least one.
        by_task: the words where each cell is shown.
        by_client: the words where only the mean over each pair of clients is, since
            there are too many tasks to tell apart.
        client_hint: from two clients, their mean and their cells, the hint of a mean.
        limits: values of the palest and of the strongest colour.
    """
    rows = sorted({cell.task for cell in cells})
    columns = sorted({cell.source for cell in cells})
    if max(len(rows), len(columns)) > LEGIBLE:
        return _between_clients(cells, by_client, client_hint, limits)
    places = {
        (rows.index(cell.task), columns.index(cell.source)): cell for cell in cells
    }
    values = np.full((len(rows), len(columns)), np.nan)
    for place, cell in places.items():
        values[place] = cell.value
    picture = heat_map(
        values,
        Axis(by_task.rows, [f"{c}/{t}" for c, t in rows]),
        Axis(by_task.columns, [f"{c}/{t}" for c, t in columns]),
        limits(values),
        lambda row, column: places[row, column].hint(),
        by_task.what,
        {place for place, cell in places.items() if cell.marked},
    )
    return picture, by_task.note


def _between_clients(
    cells: Sequence[Pair],
    words: Wording,
    client_hint: Callable[[int, int, float, Sequence[Pair]], str],
    limits: Callable[[Accuracy], tuple[float, float]],
) -> tuple[Chart, str]:
    """Return the means over pairs of clients, of a part of them where they are many."""
    grouped: dict[tuple[int, int], list[Pair]] = {}
    for cell in cells:
        grouped.setdefault((cell.task[0], cell.source[0]), []).append(cell)
    rows = columns = sorted({client for pair in grouped for client in pair})
    note = words.note
    if len(rows) > LEGIBLE:
        receivers = sorted({row for row, _ in grouped})
        rows = receivers[:LEGIBLE]
        grouped = {p: members for p, members in grouped.items() if p[0] in {*rows}}
        # Of equally many, those of the lowest numbers.
        met = Counter(sorted(column for _, column in grouped)).most_common(SOURCES)
        columns = sorted(column for column, _ in met)
        grouped = {p: members for p, members in grouped.items() if p[1] in {*columns}}
        note += (
            f" Shown are the first {len(rows)} of {len(receivers):,} clients in rows, "
            f"and {len(columns)} of those they go with in columns; all are in the "
            "run's folder."
        )
    values = np.full((len(rows), len(columns)), np.nan)
    for (row, column), members in grouped.items():
        values[rows.index(row), columns.index(column)] = _mean(members)

    def hint(row: int, column: int) -> str:
        pair = rows[row], columns[column]
        return client_hint(*pair, float(values[row, column]), grouped[pair])

    picture = heat_map(
        values,
        Axis(words.rows, [*map(str, rows)]),
        Axis(words.columns, [*map(str, columns)]),
        limits(values),
        hint,
        words.what,
    )
    return picture, note


def _mean(cells: Sequence[Pair]) -> float:
    return float(np.mean([cell.value for cell in cells]))
