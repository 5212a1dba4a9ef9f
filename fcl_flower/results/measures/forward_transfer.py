"""Forward transfer: what else was learned, held against learning each task alone."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy

ALIKE = ("seed", "scenario", "dataset", "model", "clients", "tasks")
"""Keys of a summary that two runs must have in common to be compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What a run has learned.

    Attributes:
        of: what the summary has under `ALIKE`.
        single_task: each task was learned alone, by a fresh model.
        accuracy: ``a`` of `metrics`, shape (clients, tasks, tasks).
    """

    of: Hashable
    single_task: bool
    accuracy: Accuracy


def forward_transfers(runs: Sequence[Learned]) -> list[float]:
    """Return `forward_transfer` of each run against that of single tasks among them.

    NaN for single tasks themselves, and where not exactly one such run is of the same
    seed, data and network.
    """
    found = []
    for run in runs:
        alone = [one for one in runs if one.single_task and one.of == run.of]
        compared = len(alone) == 1 and not run.single_task
        found.append(
            forward_transfer(run.accuracy, alone[0].accuracy) if compared else np.nan
        )
    return found


def forward_transfer(accuracy: Accuracy, single_task: Accuracy) -> float:
    """Return ``FWT = mean_{i>0} (a[i, i] - b[i, i])``, the mean over clients.

    How much better a task was known just after it was learned than by a model that
    learned nothing else (Wang et al., TPAMI 2024, https://arxiv.org/abs/2302.00487,
    where it is FWT). In [-1, 1]; NaN with a single task, as nothing came before it.

    Args:
        accuracy: ``a``, shape (clients, tasks, tasks).
        single_task: ``b``, the same of a fresh model for each task.

    Raises:
        ValueError: the shapes differ, or as `metrics.average_accuracy`.
    """
    if accuracy.shape != single_task.shape:
        raise ValueError(
            f"accuracy has shape {accuracy.shape} and single_task {single_task.shape}, "
            "expected the same clients and tasks"
        )
    learned, alone = map(metrics.when_learned, (accuracy, single_task))
    return metrics.mean_over_clients((learned - alone)[:, 1:])
