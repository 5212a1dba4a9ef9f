"""The matrix of adapters, from a few tasks to thousands of clients."""

import numpy as np
import pytest

from fcl_flower.results.report.sections.adapters.matrix import (
    LEGIBLE,
    SOURCES,
    Pair,
    Wording,
    adapter_matrix,
)

BY_TASK = Wording("who (task)", "whose (task)", "by task", "Each.")
BY_CLIENT = Wording("who (client)", "whose (client)", "by client", "Means.")


def drawn(pairs):
    """Return the heat map of one value for each pair of tasks, and its note."""
    cells = [
        Pair(task, source, value, False, f"{task} and {source}".strip)
        for (task, source), value in pairs.items()
    ]
    chart, note = adapter_matrix(
        cells,
        BY_TASK,
        BY_CLIENT,
        lambda c, o, mean, members: f"{c} and {o}: {mean:g} of {len(members)}",
        lambda values: (0.0, float(np.nanmax(values))),
    )
    assert np.shape(chart.traces[0]["z"]) == np.shape(chart.traces[0]["hovertext"])
    return chart, note


def test_a_few_tasks_are_shown_each():
    chart, note = drawn({((0, 0), (1, 2)): 0.5, ((1, 1), (0, 0)): 0.25})
    assert (chart.what, note) == ("by task", "Each.")
    assert chart.traces[0]["z"] == [[None, 0.5], [0.25, None]]
    assert chart.traces[0]["hovertext"][0][1] == "(0, 0) and (1, 2)"


def test_the_tasks_of_clients_are_summed_up_where_they_are_many():
    tasks = range(LEGIBLE + 1)
    pairs = {((0, task), (1, 0)): float(task) for task in tasks}
    chart, note = drawn(pairs | {((3, 0), (1, 0)): 7.0})
    assert (chart.what, note) == ("by client", "Means.")
    mean = sum(tasks) / len(tasks)
    empty = [None] * 3
    assert chart.traces[0]["z"] == [[None, mean, None], empty, [None, 7.0, None]]
    assert chart.traces[0]["hovertext"][0][1] == f"0 and 1: {mean:g} of {len(tasks)}"


def test_of_very_many_clients_a_part_is_shown_and_said():
    """Each has adapters of the next one and of client 2000, and the first of all."""
    clients = 1000
    pairs = {((c, 0), (c + 1, 0)): 1.0 for c in range(clients)}
    pairs |= {((c, 0), (2000, 0)): 2.0 for c in range(clients)}
    pairs |= {((0, 0), (c, 0)): 3.0 for c in range(1, clients)}

    chart, note = drawn(pairs)

    values = np.array(chart.traces[0]["z"], float)
    assert values.shape == (LEGIBLE, SOURCES)
    assert (values[:, -1] == 2).all(), "the column that most of the rows share"
    assert np.nansum(values[0, :-1]) == 3 * (SOURCES - 1)
    assert [values[row, row] for row in range(1, LEGIBLE)] == [1] * (LEGIBLE - 1)
    assert chart.traces[0]["hovertext"][5][-1] == "5 and 2000: 2 of 1"
    assert note == (
        f"Means. Shown are the first {LEGIBLE} of 1,000 clients in rows, and "
        f"{SOURCES} of those they go with in columns; all are in the run's folder."
    )


@pytest.mark.parametrize("clients", [LEGIBLE, LEGIBLE + 1])
def test_a_part_is_not_spoken_of_where_all_are_shown(clients):
    tasks = [(client, task) for client in range(clients) for task in range(2)]
    _, note = drawn({(task, tasks[0]): 1.0 for task in tasks[2:]})
    assert ("Shown are the first" in note) == (clients > LEGIBLE)
