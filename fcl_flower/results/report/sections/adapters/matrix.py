"""A heat map over pairs of tasks of different clients, summed up where it is too large.

Serves every section with a value for a client's task and the adapter of another one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results.diagnostics.base import TaskId
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.heatmap import Axis, heat_map
from fcl_flower.results.report.html.content import Chart

LEGIBLE = 64
"""Rows or columns up to which every single adapter is shown."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One value.

    Attributes:
        task: of the client that receives adapters; the row.
        source: the task of another client; the column.
        value: finite.
        marked: bears a dot.
        hint: shown under the pointer.
    """

    task: TaskId
    source: TaskId
    value: float
    marked: bool
    hint: str


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
    words = by_task
    names = [[f"{c}/{t}" for c, t in side] for side in (rows, columns)]
    grouped = {
        (rows.index(cell.task), columns.index(cell.source)): [cell] for cell in cells
    }
    hints = {place: cell.hint for place, (cell,) in grouped.items()}
    if max(len(rows), len(columns)) > LEGIBLE:
        words, clients = by_client, sorted({c for c, _ in (*rows, *columns)})
        names, grouped = [[str(c) for c in clients]] * 2, {}
        for cell in cells:
            place = (clients.index(cell.task[0]), clients.index(cell.source[0]))
            grouped.setdefault(place, []).append(cell)
        hints = {
            (r, c): client_hint(clients[r], clients[c], _mean(members), members)
            for (r, c), members in grouped.items()
        }
    values = np.full((len(names[0]), len(names[1])), np.nan)
    for place, members in grouped.items():
        values[place] = _mean(members)
    single = words is by_task
    marked = {place for place, (one, *_) in grouped.items() if single and one.marked}
    picture = heat_map(
        values,
        Axis(words.rows, names[0]),
        Axis(words.columns, names[1]),
        limits(values),
        lambda row, column: hints[row, column],
        words.what,
        marked,
    )
    return picture, words.note


def _mean(cells: Sequence[Pair]) -> float:
    return float(np.mean([cell.value for cell in cells]))
