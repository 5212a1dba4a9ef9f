"""What a summary says of the accuracies: the measures that a scenario allows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcl_flower.core.types import Array
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.results import metrics

MEASURES = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "learning_accuracy": metrics.learning_accuracy,
}


def measures(
    scenario: Scenario, accuracy: Array, evaluations: Sequence[Array]
) -> dict[str, Any]:
    """Return the measures by name; None for what is not known.

    Hidden concepts have no moment at which they were learned: only the accuracy at the
    end and what was lost since the best evaluation.

    Args:
        scenario: who learned what.
        accuracy: ``a`` of `metrics`, shape (clients, tasks, tasks).
        evaluations: where concepts are hidden, the mean over clients of each concept.
    """
    known: dict[str, Any] = {
        "sample_accuracy": _of_samples(scenario, accuracy),
        "accuracy_matrix": _listed(metrics.mean_measured(accuracy, axis=0)),
        "client_accuracy": [_listed(matrix) for matrix in accuracy],
    }
    if scenario.stream is None:
        return {n: _known(measure(accuracy)) for n, measure in MEASURES.items()} | known
    known = dict.fromkeys(MEASURES) | known
    known["average_accuracy"] = _known(metrics.average_accuracy(accuracy))
    if evaluations:
        lost = metrics.forgetting_of_concepts(np.array(evaluations))
        known["forgetting"] = _known(lost)
    return known


def _of_samples(scenario: Scenario, accuracy: Array) -> list[float | None]:
    """Return the accuracy over all test samples so far, by task learned last.

    None where nobody but the clients knows how many samples there are.
    """
    if scenario.local_data:
        return [None] * accuracy.shape[1]
    counts = [[len(task.test) for task in tasks] for tasks in scenario.clients]
    return _row(metrics.sample_accuracy(accuracy, np.array(counts)))


def _listed(matrix: Array) -> list[list[float | None]]:
    return [_row(row) for row in matrix]


def _row(values: Array) -> list[float | None]:
    return [_known(value) for value in values]


def _known(value: float) -> float | None:
    """Return None for NaN, which JSON does not know."""
    return None if np.isnan(value) else float(value)
