"""Measures of continual learning: pure functions over accuracies, the same for all.

Every function reads ``a[c, t, i]``: the accuracy, a fraction in [0, 1], of client c on
the test data of its task i after learning task t, with the model that the client
would use then. It has shape (clients, tasks, tasks) and is NaN where ``i > t`` and
where nothing was measured. T below is the last task, so the last row is always the
last round's, never the best round's. What is no such array is a `ValueError`.

What was not measured is left out: first each client's mean is taken over its measured
tasks, then the mean over the clients that have one. A client that vanished before the
end thus counts neither as zero nor at all. Where nothing is left the result is NaN.

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
"""Samples answered rightly, tested and given as an answer, by class: shape (3, ...)."""


def average_accuracy(accuracy: Accuracy) -> float:
    """Compute ``A_T = mean_i a[T, i]``, the mean over clients, in [0, 1].

    The final accuracy of FedWeIT (Yoon et al., ICML 2021, appendix, measure 1).
    """
    return mean_over_clients(_checked(accuracy)[:, -1])


def sample_accuracy(accuracy: Accuracy, counts: npt.NDArray[np.int64]) -> Accuracy:
    """Compute the accuracy over all test samples of the tasks so far, by task learned.

    ``sum_ci n[c, i] a[c, t, i] / sum_ci n[c, i]`` over what was measured after task t,
    with ``n`` of shape (clients, tasks): in class-incremental learning the accuracy
    over all classes seen (Rebuffi et al., CVPR 2017, section 4), where clients test
    different samples. Shape (tasks,), in [0, 1]; NaN where no sample was tested.
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

    The average incremental accuracy of iCaRL (Rebuffi et al., CVPR 2017, section 4):
    after each task the accuracy over all classes so far, each test sample once, and the
    mean of these. With tasks of unequal size it is no mean of accuracies on tasks. NaN
    where one is unknown.
    """
    return float(np.mean(seen))


def learning_accuracy(accuracy: Accuracy) -> float:
    """Compute ``mean_i a[i, i]``, the mean over clients, in [0, 1].

    How well each task was known before anything could be forgotten.
    """
    return mean_over_clients(when_learned(accuracy))


def when_learned(accuracy: Accuracy) -> Accuracy:
    """Take ``a[i, i]`` of each client and task, shape (clients, tasks)."""
    return np.diagonal(_checked(accuracy), axis1=1, axis2=2)


def forgetting(accuracy: Accuracy) -> float:
    """Compute ``F = mean_{i<T} max_{t<T} (a[t, i] - a[T, i])``, the mean over clients.

    Catastrophic forgetting (Chaudhry et al., ECCV 2018, equation 3). In [-1, 1]; above
    zero accuracy was lost, below zero the old tasks became better than they ever were;
    0.0 with a single task.
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

    Lopez-Paz & Ranzato, NeurIPS 2017, equation 3. In [-1, 1]; positive when later
    tasks helped earlier ones; 0.0 with a single task.
    """
    checked = _checked(accuracy)
    if checked.shape[1] == 1:
        return 0.0
    return mean_over_clients((checked[:, -1] - when_learned(checked))[:, :-1])


def forgetting_of_concepts(accuracy: Accuracy) -> float:
    """Compute ``mean_i max_{e<E} (a[e, i] - a[E, i])`` over evaluations, in [-1, 1].

    For concepts whose data come again and again, so that none is learned at a known
    time: how much of each was lost since its best evaluation before the last, E. The
    best of many is above their mean by chance. 0.0 after a single evaluation.
    ``accuracy`` has shape (evaluations, concepts), mean over clients.
    """
    if len(accuracy) == 1:
        return 0.0
    best = np.fmax.reduce(accuracy[:-1], axis=0)
    return float(mean_measured(best - accuracy[-1], axis=0))


# ---- runs held against each other


@dataclass(frozen=True, slots=True)
class Paired:
    """One method held against another, pair by pair: of clients, or of seeds.

    Attributes:
        difference: mean over the pairs.
        deviation: standard deviation of the differences (n - 1); None of one.
        pairs: how many there are.
        p: two-sided p-value of the paired t-test; None where it says nothing: below two
            pairs, or where all differences are the same.
        margin: from ``difference`` to the ends of its 95 % interval; None below two.
    """

    difference: float
    deviation: float | None
    pairs: int
    p: float | None
    margin: float | None


def paired(differences: Sequence[float]) -> Paired:
    """Do Student's paired t-test of differences, at least one (Biometrika 1908).

    ``t = mean(d) sqrt(n) / s(d)`` with n - 1 degrees of freedom. It takes them as
    drawn, each by itself, from one normal distribution; of three only a large
    difference is told from none.
    """
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return Paired(mean, None, count, None, None)
    deviation = statistics.stdev(differences)
    if deviation == 0:
        return Paired(mean, 0.0, count, None, 0.0)
    # Imported here since it takes a while, and only what is shown to people asks.
    from scipy.special import stdtr, stdtrit

    error = deviation / math.sqrt(count)
    p = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Paired(mean, deviation, count, p, float(stdtrit(count - 1, 0.975)) * error)


def transfer_gain(federated: Accuracy, local_only: Accuracy) -> Accuracy:
    """Compute the final accuracy with federation minus that without, pair by pair.

    ``g[u, i] = a_federated[u, T, i] - a_local_only[u, T, i]`` for unit u and task i,
    both of shape (units, tasks, tasks). A unit is a client of one run, or a seed, for
    which the clients' mean is given. What was not measured in both runs is NaN. Pairing
    matters: the clients differ from each other far more than the two runs of one
    client.
    """
    _same_shape(federated=federated, local_only=local_only)
    return np.asarray(_checked(federated)[:, -1] - _checked(local_only)[:, -1])


def forward_transfer(accuracy: Accuracy, single_task: Accuracy) -> float:
    """Compute ``FWT = mean_{i>0} (a[i, i] - b[i, i])``, the mean over clients.

    How much better a task was known just after it was learned than by ``b``, a fresh
    model for each task (Wang et al., TPAMI 2024, https://arxiv.org/abs/2302.00487,
    where it is FWT). In [-1, 1]; NaN with a single task, as nothing came before it.
    """
    _same_shape(accuracy=accuracy, single_task=single_task)
    learned, alone = map(when_learned, (accuracy, single_task))
    return mean_over_clients((learned - alone)[:, 1:])


# ---- classes


def recall(counts: Counts) -> Accuracy:
    """Fraction of a class's samples that were answered rightly; NaN without samples."""
    right, tested, _ = counts
    return _ratio(right, tested)


def precision(counts: Counts) -> Accuracy:
    """Fraction of the answers of a class that were right; NaN if it was none."""
    right, _, answered = counts
    return _ratio(right, answered)


def f1(counts: Counts) -> Accuracy:
    """Compute ``2 right / (tested + answered)``: the harmonic mean of the two.

    0 for a class that has samples and was never answered, NaN for one without samples:
    it is not among those that a mean over classes is taken of.
    """
    right, tested, answered = counts
    return _ratio(2 * right, np.where(tested > 0, tested + answered, 0))


# ---- what is measured of an array


def mean_measured(values: Accuracy, axis: int) -> Accuracy:
    """Average over ``axis`` what is not NaN; NaN where nothing is."""
    measured = ~np.isnan(values)
    count = np.asarray(measured.sum(axis))
    return _ratio(np.asarray(np.where(measured, values, 0.0).sum(axis)), count)


def spread_measured(values: Accuracy, axis: int) -> Accuracy:
    """Compute the standard deviation (n - 1) over ``axis``; NaN below two values."""
    count = np.asarray((~np.isnan(values)).sum(axis))
    mean = np.expand_dims(mean_measured(values, axis), axis)
    variance = mean_measured((values - mean) ** 2, axis)
    bessel = np.full(count.shape, np.nan)
    np.divide(count, count - 1, out=bessel, where=count > 1)
    spread: Accuracy = np.sqrt(variance * bessel)
    return spread


def mean_over_clients(values: Accuracy) -> float:
    """Average each client's mean over the clients, of an array (clients, n)."""
    return float(mean_measured(mean_measured(values, axis=1), axis=0))


def trim_unlearned(accuracy: Accuracy) -> Accuracy:
    """Cut ``a``, which is not NaN everywhere, after the last task that was learned."""
    learned = ~np.isnan(accuracy).all(axis=(0, 2))
    stop = int(np.flatnonzero(learned)[-1]) + 1
    return accuracy[:, :stop, :stop]


def _ratio(part: npt.NDArray[np.number], whole: npt.NDArray[np.number]) -> Accuracy:
    found = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found


def _checked(accuracy: Accuracy) -> Accuracy:
    """Refuse what is no array as this module's docstring says."""
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
