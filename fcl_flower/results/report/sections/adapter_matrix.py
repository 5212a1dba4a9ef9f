"""A heat map over pairs of tasks of different clients, summed up where it is too large.

Serves every section with a value for a client's task and the adapter of another one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results.diagnostics.base import TaskId
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.heatmap import Axis, Label, Look, heat_map
from fcl_flower.results.report.html.markup import Markup

LEGIBLE = 64
"""Rows or columns up to which every single adapter is shown."""


@dataclass(frozen=True, slots=True)
class Cell:
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
    cells: Sequence[Cell],
    by_task: Wording,
    by_client: Wording,
    client_hint: Callable[[int, int, float, Sequence[Cell]], str],
    colour_range: Callable[[Accuracy], tuple[float, float]],
) -> tuple[Markup, str]:
    """Return the picture of the cells and the note that goes with it.

    Args:
        cells: at least one.
        by_task: the words where each cell is shown.
        by_client: the words where only the mean over each pair of clients is, since
            there are too many tasks to tell apart.
        client_hint: from two clients, their mean and their cells, the hint of a mean.
        colour_range: values of the palest and of the strongest colour.
    """
    rows = sorted({cell.task for cell in cells})
    columns = sorted({cell.source for cell in cells})
    if max(len(rows), len(columns)) > LEGIBLE:
        return _means(cells, by_client, client_hint, colour_range), by_client.note
    values = np.full((len(rows), len(columns)), np.nan)
    hints = {}
    marked = set()
    for cell in cells:
        cell_index = (rows.index(cell.task), columns.index(cell.source))
        values[cell_index] = cell.value
        hints[cell_index] = cell.hint
        if cell.marked:
            marked.add(cell_index)
    picture = heat_map(
        values,
        Axis(by_task.rows, _task_labels(rows)),
        Axis(by_task.columns, _task_labels(columns)),
        _look(values, colour_range),
        lambda row, column: hints[row, column],
        by_task.what,
        marked,
    )
    return picture, by_task.note


def _means(
    cells: Sequence[Cell],
    words: Wording,
    client_hint: Callable[[int, int, float, Sequence[Cell]], str],
    colour_range: Callable[[Accuracy], tuple[float, float]],
) -> Markup:
    """Return the mean over all cells of each pair of clients."""
    clients = sorted({client for c in cells for client, _ in (c.task, c.source)})
    pairs: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        cell_index = (clients.index(cell.task[0]), clients.index(cell.source[0]))
        pairs.setdefault(cell_index, []).append(cell)
    values = np.full((len(clients), len(clients)), np.nan)
    for cell_index, members in pairs.items():
        values[cell_index] = np.mean([cell.value for cell in members])
    labels = [Label(str(client)) for client in clients]
    return heat_map(
        values,
        Axis(words.rows, labels),
        Axis(words.columns, labels),
        _look(values, colour_range),
        lambda row, column: client_hint(
            clients[row],
            clients[column],
            float(values[row, column]),
            pairs[row, column],
        ),
        words.what,
    )


def _task_labels(task_ids: Sequence[TaskId]) -> list[Label]:
    """Return the number of each task, grouped by client."""
    return [Label(str(task), f"client {client}") for client, task in task_ids]


def _look(
    values: Accuracy, colour_range: Callable[[Accuracy], tuple[float, float]]
) -> Look:
    """Return colours and a size of cells that suits the number of columns."""
    side = min(max(740 / values.shape[1], 7.0), 44.0)
    return Look(*colour_range(values), (side, min(side, 26.0)))
