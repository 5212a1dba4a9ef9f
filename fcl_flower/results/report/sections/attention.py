"""The section on foreign adapters: whose knowledge each client weighs, and how much."""

from collections.abc import Sequence

import numpy as np

from fcl_flower.results.metrics import Accuracy, mean_measured
from fcl_flower.results.report.charts import heatmap
from fcl_flower.results.report.charts.heatmap import Axis, Label, Look, TaskId, heat_map
from fcl_flower.results.report.html import page
from fcl_flower.results.report.html.markup import Markup
from fcl_flower.results.report.schema import Attention


def attention_section(attention: Sequence[Attention]) -> Markup:
    """Return the weights as a heat map: per adapter, or per client where too many."""
    used = [entry for entry in attention if entry.foreign]
    if not used:
        return page.section(
            "No client has foreign adapters",
            "The strategy offers them, but none had arrived by the end of this run.",
        )
    rows = sorted({(e.client, e.task) for e in used})
    columns = sorted({(f.client, f.task) for e in used for f in e.foreign})
    if max(len(rows), len(columns)) > heatmap.LEGIBLE:
        picture, note = _by_client(used)
    else:
        picture, note = _by_adapter(used, rows, columns)
    return page.section(_finding(used), note, picture)


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


def _by_adapter(
    used: Sequence[Attention], rows: Sequence[TaskId], columns: Sequence[TaskId]
) -> tuple[Markup, str]:
    weights = np.full((len(rows), len(columns)), np.nan)
    hints: dict[TaskId, str] = {}
    marked = set()
    for entry in used:
        row = rows.index((entry.client, entry.task))
        for foreign in entry.foreign:
            cell = (row, columns.index((foreign.client, foreign.task)))
            weights[cell] = foreign.weight
            hints[cell] = (
                f"client {entry.client}, task {entry.task} ({entry.task_name}) uses "
                f"client {foreign.client}, task {foreign.task} "
                f"({foreign.task_name}): {foreign.weight:.3f}"
            )
            if foreign.same_group:
                marked.add(cell)
    picture = heat_map(
        weights,
        Axis("who attends (client, task)", heatmap.labels(rows)),
        Axis("whose adapter (task, client)", heatmap.labels(columns)),
        Look(0.0, _top(weights), heatmap.cell(len(columns))),
        lambda r, c: hints[r, c],
        "Weight of each foreign adapter for each client and task",
        marked,
    )
    note = (
        "Mean |alpha| over the layers. An empty cell: the adapter was not offered for "
        "that task."
    )
    if marked:
        note += " A dot: the adapter's task is of the same class group."
    return picture, note


def _by_client(used: Sequence[Attention]) -> tuple[Markup, str]:
    clients = sorted(
        {e.client for e in used} | {f.client for e in used for f in e.foreign}
    )
    given: dict[TaskId, list[float]] = {}
    for entry in used:
        for foreign in entry.foreign:
            cell = (clients.index(entry.client), clients.index(foreign.client))
            given.setdefault(cell, []).append(foreign.weight)
    weights = np.full((len(clients), len(clients)), np.nan)
    for cell, values in given.items():
        weights[cell] = mean_measured(np.array(values), axis=0)
    axis = [Label(str(client)) for client in clients]
    picture = heat_map(
        weights,
        Axis("who attends (client)", axis),
        Axis("whose adapters (client)", axis),
        Look(0.0, _top(weights), heatmap.cell(len(clients))),
        lambda r, c: (
            f"client {clients[r]} uses client {clients[c]}: {weights[r, c]:.3f}, "
            f"mean of {len(given[r, c])}"
        ),
        "Mean weight that each client gives to the adapters of each other client",
    )
    return picture, (
        "Mean |alpha| over layers, tasks and adapters: there are too many adapters to "
        "show each. An empty cell: the client was never offered the other's adapters."
    )


def _top(weights: Accuracy) -> float:
    """Return the end of the colour scale; any positive one if all weights are zero."""
    return float(np.nanmax(weights)) or 1.0
