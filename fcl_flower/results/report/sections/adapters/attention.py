"""The section on foreign adapters: which ones each client attends to, and how much."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.html.content import Section
from fcl_flower.results.report.schema import Attention, ForeignAdapter
from fcl_flower.results.report.sections.adapters.matrix import (
    Pair,
    Wording,
    adapter_matrix,
)

BY_TASK = Wording(
    "who attends (client/task)",
    "whose adapter (client/task)",
    "Weight of each foreign adapter for each client and task",
    "Mean |alpha| over the layers. An empty cell: the adapter was not offered for "
    "that task.",
)
BY_CLIENT = Wording(
    "who attends (client)",
    "whose adapters (client)",
    "Mean weight that each client gives to the adapters of each other client",
    "Mean |alpha| over layers, tasks and adapters: there are too many adapters to "
    "show each. An empty cell: the client was never offered the other's adapters.",
)
SAME_GROUP = " A dot: the adapter's task is of the same class group."


def attention_section(attention: Sequence[Attention]) -> Section:
    """Return the weights as a heat map: per adapter, or per client where too many."""
    used = [entry for entry in attention if entry.foreign]
    if not used:
        return Section(
            "No client has foreign adapters",
            "The strategy offers them, but none had arrived by the end of this run.",
        )
    cells = [_cell(entry, foreign) for entry in used for foreign in entry.foreign]
    dotted = any(cell.marked for cell in cells)
    by_task = replace(BY_TASK, note=BY_TASK.note + SAME_GROUP) if dotted else BY_TASK
    picture, note = adapter_matrix(cells, by_task, BY_CLIENT, _client_hint, _limits)
    return Section(_finding(used), note, picture)


def _finding(used: Sequence[Attention]) -> str:
    """Return whether adapters of the same class group weigh more than the others."""
    foreign = [f for entry in used for f in entry.foreign]
    same = [f.weight for f in foreign if f.same_group is True]
    other = [f.weight for f in foreign if f.same_group is False]
    if not same or not other:
        mean = np.mean([f.weight for f in foreign])
        return f"A foreign adapter has a weight of {mean:.2f} on average"
    means = float(np.mean(same)), float(np.mean(other))
    if f"{means[0]:.2f}" == f"{means[1]:.2f}":
        compared = "the same weight as"
    else:
        compared = "more weight than" if means[0] > means[1] else "less weight than"
    return (
        f"Adapters of the same class group get {compared} the others: {means[0]:.2f} "
        f"(mean of {len(same):,}) against {means[1]:.2f} (mean of {len(other):,})"
    )


def _cell(entry: Attention, foreign: ForeignAdapter) -> Pair:
    return Pair(
        (entry.client, entry.task),
        (foreign.client, foreign.task),
        foreign.weight,
        bool(foreign.same_group),
        partial(_hint, entry, foreign),
    )


def _hint(entry: Attention, foreign: ForeignAdapter) -> str:
    return (
        f"client {entry.client}, task {entry.task} ({entry.task_name}) uses "
        f"client {foreign.client}, task {foreign.task} "
        f"({foreign.task_name}): {foreign.weight:.3f}"
    )


def _client_hint(client: int, other: int, mean: float, cells: Sequence[Pair]) -> str:
    return f"client {client} uses client {other}: {mean:.3f}, mean of {len(cells)}"


def _limits(weights: Accuracy) -> tuple[float, float]:
    """Return a range from zero; to any positive end if all weights are zero."""
    return 0.0, float(np.nanmax(weights)) or 1.0
