"""Accuracies round by round: what a run with hidden concepts has for a matrix."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fcl_flower.metrics import Accuracy, mean_measured
from fcl_flower.report.run_folder import Run


@dataclass(frozen=True, slots=True, eq=False)
class Evaluations:
    """Every evaluation of a run.

    Attributes:
        rounds: after which clients were evaluated, ascending.
        accuracy: shape (evaluations, clients, tasks), NaN where nothing was measured.
    """

    rounds: npt.NDArray[np.int64]
    accuracy: Accuracy

    @property
    def by_task(self) -> Accuracy:
        """Return the mean over clients, shape (evaluations, tasks)."""
        return mean_measured(self.accuracy, axis=1)

    @property
    def average(self) -> Accuracy:
        """Return the mean over tasks and then over clients, shape (evaluations,)."""
        return mean_measured(mean_measured(self.accuracy, axis=2), axis=1)


def evaluations(run: Run) -> Evaluations:
    """Return what ``accuracy.csv`` holds."""
    rounds = sorted({m.round for m in run.measurements})
    place = {number: i for i, number in enumerate(rounds)}
    shape = (len(rounds), run.summary.clients, run.summary.tasks)
    accuracy = np.full(shape, np.nan)
    for m in run.measurements:
        accuracy[place[m.round], m.client, m.task] = m.accuracy
    return Evaluations(np.array(rounds, np.int64), accuracy)
