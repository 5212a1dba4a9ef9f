"""Measures of continual learning: pure functions over accuracies.

Every function reads ``a[c, t, i]``: the accuracy, a fraction in [0, 1], of client c on
the test data of its task i after learning task t, with the model that the client
would use then. It has shape (clients, tasks, tasks) and is NaN where ``i > t`` and
where nothing was measured. T below is the last task, so the last row is that of the
last round, not of the best one. Any other array is a `ValueError`.

The mean goes over a client's measured tasks first, and then over the clients that have
such a mean. A client that vanished before the end does not count. Without any value
the result is NaN.

>>> nan = np.nan
>>> a = np.array([[[0.8, nan], [0.6, 0.9]]])
>>> average_accuracy(a), round(forgetting(a), 3), round(backward_transfer(a), 3)
(0.75, 0.2, -0.2)
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Accuracy: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
"""Right answers, samples, and answers that name the class, by class: shape (3, ...)."""


def average_accuracy(accuracy: Accuracy) -> float:
    """Compute ``A_T = mean_i a[T, i]``, the mean over clients, in [0, 1].

    It is the final accuracy of FedWeIT (Yoon et al., ICML 2021, appendix, measure 1).
    """
    return mean_over_clients(_checked(accuracy)[:, -1])


def sample_accuracy(accuracy: Accuracy, counts: npt.NDArray[np.int64]) -> Accuracy:
    """Compute the accuracy over all test samples of the tasks so far, by task learned.

    It is ``sum_ci n[c, i] a[c, t, i] / sum_ci n[c, i]`` over the values that were
    measured after task t. In class-incremental learning, where clients test different
    samples, it is the accuracy over all classes seen (Rebuffi et al., CVPR 2017,
    section 4).

    Args:
        accuracy: ``a``.
        counts: ``n``, the numbers of test samples, shape (clients, tasks).

    Returns:
        shape (tasks,), in [0, 1]; NaN where no sample was tested.
    """
    checked = _checked(accuracy)
    if counts.shape != checked.shape[:2]:
        raise ValueError(
            f"counts has shape {counts.shape}, expected {checked.shape[:2]}"
        )
    weights = np.where(np.isnan(checked), 0, counts[:, None])
    right = (weights * np.nan_to_num(checked)).sum((0, 2))
    return _ratio(right, weights.sum((0, 2)))


def average_incremental_accuracy(seen: Accuracy) -> float:
    """Compute ``mean_t s[t]`` of a `sample_accuracy` s, shape (tasks,), in [0, 1].

    It is the average incremental accuracy of iCaRL (Rebuffi et al., CVPR 2017, section
    4). With tasks of unequal size it is no mean of accuracies on tasks. It is NaN if an
    ``s[t]`` is unknown.
    """
    return float(np.mean(seen))


def learning_accuracy(accuracy: Accuracy) -> float:
    """Compute ``mean_i a[i, i]``, the mean over clients, in [0, 1].

    It measures the tasks before anything could be forgotten.
    """
    return mean_over_clients(when_learned(accuracy))


def when_learned(accuracy: Accuracy) -> Accuracy:
    """Take ``a[i, i]`` of each client and task, shape (clients, tasks)."""
    return np.diagonal(_checked(accuracy), axis1=1, axis2=2)


def forgetting(accuracy: Accuracy) -> float:
    """Compute ``F = mean_{i<T} max_{t<T} (a[t, i] - a[T, i])``, the mean over clients.

    It is catastrophic forgetting (Chaudhry et al., ECCV 2018, equation 3), in [-1, 1].
    Above zero, accuracy was lost. Below zero, the old tasks became better than ever. It
    is 0.0 with a single task.
    """
    per_task = forgetting_per_task(accuracy)
    return mean_over_clients(per_task) if per_task.shape[1] else 0.0


def forgetting_per_task(accuracy: Accuracy) -> Accuracy:
    """Compute the terms of `forgetting`, shape (clients, tasks - 1), NaN if unknown."""
    checked = _checked(accuracy)
    if checked.shape[1] == 1:
        return np.empty((len(checked), 0))
    best = np.fmax.reduce(checked[:, :-1, :-1], axis=1)
    return np.asarray(best - checked[:, -1, :-1])


def backward_transfer(accuracy: Accuracy) -> float:
    """Compute ``BWT = mean_{i<T} (a[T, i] - a[i, i])``, the mean over clients.

    See Lopez-Paz & Ranzato, NeurIPS 2017, equation 3. It is in [-1, 1], positive if
    later tasks helped earlier ones, and 0.0 with a single task.
    """
    checked = _checked(accuracy)
    if checked.shape[1] == 1:
        return 0.0
    return mean_over_clients((checked[:, -1] - when_learned(checked))[:, :-1])


def forgetting_of_concepts(accuracy: Accuracy) -> float:
    """Compute ``mean_i max_{e<E} (a[e, i] - a[E, i])`` over evaluations, in [-1, 1].

    The data of hidden concepts return, so no concept is learned at a known time. This
    is the loss of each since its best evaluation before the last one, E. By chance the
    best of many is above their mean. After a single evaluation the result is 0.0.
    ``accuracy`` has shape (evaluations, concepts), mean over clients.
    """
    if len(accuracy) == 1:
        return 0.0
    best = np.fmax.reduce(accuracy[:-1], axis=0)
    return float(mean_measured(best - accuracy[-1], axis=0))


# ---- runs compared with each other


@dataclass(frozen=True, slots=True)
class Paired:
    """The comparison of two methods over pairs: of clients, or of seeds.

    Attributes:
        difference: mean difference over the pairs.
        deviation: standard deviation of the differences (n - 1); None for one pair.
        pairs: number of pairs.
        p: two-sided p-value of the paired t-test; None for one pair, and if all
            differences are the same.
        margin: half of the 95 % interval around ``difference``; None for one pair.
    """

    difference: float
    deviation: float | None
    pairs: int
    p: float | None
    margin: float | None


def paired(differences: Sequence[float]) -> Paired:
    """Do Student's paired t-test of differences, at least one (Biometrika 1908).

    ``t = mean(d) sqrt(n) / s(d)`` has n - 1 degrees of freedom. The test assumes
    independent differences of one normal distribution. With three of them only a large
    difference is significant.
    """
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return Paired(mean, None, count, None, None)
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return Paired(mean, 0.0, count, None, 0.0)
    # Imported here since it takes a while, and only tables and pages need it.
    from scipy.special import stdtr, stdtrit

    error = deviation / math.sqrt(count)
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Paired(mean, deviation, count, p, float(stdtrit(count - 1, 0.975)) * error)


def transfer_gain(federated: Accuracy, local_only: Accuracy) -> Accuracy:
    """Compute the final accuracy with federation minus that without, pair by pair.

    ``g[u, i] = a_federated[u, T, i] - a_local_only[u, T, i]`` for unit u and task i,
    both of shape (units, tasks, tasks). A unit is a client of one run, or the clients'
    mean of a seed. A value that one run lacks is NaN. Pairs are needed, since clients
    differ far more from each other than the two runs of a client do.
    """
    _same_shape(federated=federated, local_only=local_only)
    return np.asarray(_checked(federated)[:, -1] - _checked(local_only)[:, -1])


def forward_transfer(accuracy: Accuracy, single_task: Accuracy) -> float:
    """Compute ``FWT = mean_{i>0} (a[i, i] - b[i, i])``, the mean over clients.

    It compares each task, just after it was learned, with ``b``, a fresh model for each
    task (FWT of Wang et al., TPAMI 2024, https://arxiv.org/abs/2302.00487). It is in
    [-1, 1], and NaN with a single task.
    """
    _same_shape(accuracy=accuracy, single_task=single_task)
    learned, alone = map(when_learned, (accuracy, single_task))
    return mean_over_clients((learned - alone)[:, 1:])


# ---- classes


def recall(counts: Counts) -> Accuracy:
    """Compute the fraction of a class's samples with right answers; NaN without any."""
    right, tested, _ = counts
    return _ratio(right, tested)


def precision(counts: Counts) -> Accuracy:
    """Compute the fraction of right answers among those that name a class.

    It is NaN if no answer names the class.
    """
    right, _, answered = counts
    return _ratio(right, answered)


def f1(counts: Counts) -> Accuracy:
    """Compute ``2 right / (tested + answered)``: the harmonic mean of both.

    It is 0 for a class with samples that no answer names. It is NaN for a class without
    samples, which so counts in no mean over classes.
    """
    right, tested, answered = counts
    return _ratio(2 * right, np.where(tested > 0, tested + answered, 0))


# ---- means over measured values


def mean_measured(values: Accuracy, axis: int) -> Accuracy:
    """Average the values that are not NaN over ``axis``; NaN if there are none."""
    measured = ~np.isnan(values)
    count = np.asarray(measured.sum(axis))
    return _ratio(np.asarray(np.where(measured, values, 0.0).sum(axis)), count)


def mean_over_clients(values: Accuracy) -> float:
    """Average each client's mean over the clients, of an array (clients, n)."""
    return float(mean_measured(mean_measured(values, axis=1), axis=0))


def trim_unlearned(accuracy: Accuracy) -> Accuracy:
    """Cut ``a``, which is not NaN everywhere, after the last learned task."""
    learned = ~np.isnan(accuracy).all(axis=(0, 2))
    stop = int(np.flatnonzero(learned)[-1]) + 1
    return accuracy[:, :stop, :stop]


def _ratio(part: npt.NDArray[np.number], whole: npt.NDArray[np.number]) -> Accuracy:
    ratio = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _checked(accuracy: Accuracy) -> Accuracy:
    """Refuse any other array than this file's docstring describes."""
    shape = accuracy.shape
    if len(shape) != 3 or shape[1] != shape[2] or 0 in shape:
        raise ValueError(
            f"accuracy has shape {shape}, expected (clients, tasks, tasks)"
        )
    measured = accuracy[~np.isnan(accuracy)]
    if ((measured < 0) | (measured > 1)).any():
        raise ValueError("accuracy has a value outside [0, 1], expected fractions")
    if not np.isnan(accuracy[:, *np.triu_indices(shape[1], k=1)]).all():
        raise ValueError(
            "accuracy has a value above the diagonal, expected NaN for tasks that "
            "were not learned yet"
        )
    return accuracy


def _same_shape(**arrays: Accuracy) -> None:
    (name, first), (other, second) = arrays.items()
    if first.shape != second.shape:
        raise ValueError(
            f"{name} has shape {first.shape} and {other} {second.shape}, expected the "
            "same units and tasks"
        )
