"""A test of which classes of different tasks are the same, by their means alone.

It is probabilistic linear discriminant analysis (Ioffe, ECCV 2006; Prince and Elder,
ICCV 2007). If mu is the true mean of a class, the mean of n samples lies at mu + e /
sqrt(n). Here e is from the Gaussian of a sample about its class, and the mu of all
classes have a Gaussian of their own. So the distance d of two means is small if they
are of one class and large if they are of two. With few samples neither is surprising.
The evidence is::

    log p(d | one) - log p(d | two),   d ~ N(0, v)  or  d ~ N(0, v + 2 r b),

in each direction of a basis in which both Gaussians are independent. There ``v = w (1 /
n_1 + 1 / n_2)``, w is the variance within and b that between classes. Classes of one
task are different, so b is measured on them. Directions in which b could be noise are
left out.

Where tasks differ in kind, the classes of some tasks are closer to each other than
those of others. With one b for all tasks they would be taken for one class. So r is the
distance of the classes of these two tasks, as a share of b, times 1/2. The factor is
there since among many classes the nearest are nearer than most.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from strategies.analytic.sums import Matrix, Sums, shrunk

Same: TypeAlias = list[dict[int, list[tuple[int, int]]]]
"""The pairs, for each task and number of another task, of a class of its own and the
other's."""

_SHRINKAGE = 0.5
"""The shrinkage of the covariance within classes, towards a sphere. It is large to be
safe: noise in a direction of little variance would look like another class."""
_NEAREST = 0.5
"""The least distance of different classes of two tasks, as a share of the variance
between the classes of these tasks."""
_NOTHING = 1e-12
"""The bound below which a variance is rounding: features have length 1 at most."""
_LEAST = 1e-6
"""The least variance within classes, where that of the shrunk covariance is 1."""
_NEVER = -1e9


def match_classes(sums: Sequence[Sums]) -> Same:
    """Match for each task its classes that other tasks have as well.

    No class of a task is the same as two of another. Of all ways to match the classes
    of two tasks the function takes the most probable, if it is more probable than none.
    The prior expects that one of all other tasks has classes in common with this one.
    Each number of common classes is equally likely, and so is each matching of that
    number. So classes that match together support each other, and a single match needs
    more evidence.
    """
    same: Same = [{} for _ in sums]
    space = _space(sums)
    if space is None:
        return same
    basis, within, between = space
    means = [task_sums.means @ basis for task_sums in sums]
    spreads = [
        _spread(mean, task_sums.counts, within)
        for mean, task_sums in zip(means, sums, strict=True)
    ]
    for first, second in combinations(range(len(sums)), 2):
        square, degrees = np.add(spreads[first], spreads[second])
        apart = max(0.0, square / degrees) / between.sum() if degrees else 1.0
        evidence = _evidence(
            (means[first], sums[first].counts),
            (means[second], sums[second].counts),
            within,
            between * apart * _NEAREST,
        )
        for mine, its in _matching(evidence, len(sums) - 1):
            same[first].setdefault(second, []).append((mine, its))
            same[second].setdefault(first, []).append((its, mine))
    return same


def _evidence(
    one: tuple[Matrix, Matrix],
    other: tuple[Matrix, Matrix],
    within: Matrix,
    between: Matrix,
) -> Matrix:
    """Compute the log-likelihood ratio of each pair of classes, shape (C, C).

    ``within`` is the variance of a sample about its class, ``between`` that of classes
    about their mean, shape (directions,).
    """
    (a, n), (b, m) = one, other
    present = (n > 0)[:, None] & (m > 0)
    rate = _rate(n)[:, None] + _rate(m)
    same = rate[:, :, None] * within
    different = same + 2 * between
    square = np.square(a[:, None] - b)
    ratio = np.log(different / same) - square * (1 / same - 1 / different)
    return np.where(present, ratio.sum(2) / 2, _NEVER)


def _matching(evidence: Matrix, others: int) -> list[tuple[int, int]]:
    if evidence.max() <= 0:
        return []
    present = evidence > _NEVER
    rows, columns = np.flatnonzero(present.any(1)), np.flatnonzero(present.any(0))
    evidence = evidence[np.ix_(rows, columns)]
    numbers = np.arange(1, min(evidence.shape) + 1)
    # Logarithms of the numbers of ways to choose k classes of each task and pair them.
    ways = -gammaln(numbers + 1)
    for size in evidence.shape:
        ways += gammaln(size + 1) - gammaln(size - numbers + 1)
    prior = -ways - np.log(len(numbers) + 1) - np.log(max(1, others))
    # The upper bound matches each class with its nearest, even if others do too.
    nearest = np.sort(evidence.max(1))[::-1][: len(numbers)]
    ceiling = nearest.cumsum() + prior
    best: list[tuple[int, int]] = []
    most = 0.0
    for at in np.argsort(-ceiling, kind="stable"):
        if ceiling[at] <= most:
            break
        # Padding stands for no class, and takes the classes without a match.
        count, other = evidence.shape
        size = count + other - int(numbers[at])
        padded = np.zeros((size, size))
        padded[:count, :other] = evidence
        padded[count:, other:] = _NEVER
        mine, its = linear_sum_assignment(padded, maximize=True)
        pairs = (mine < count) & (its < other)
        mine, its = mine[pairs], its[pairs]
        weight = evidence[mine, its].sum() + prior[at]
        if weight > most:
            most = weight
            best = list(zip(rows[mine].tolist(), columns[its].tolist(), strict=True))
    return best


def _spread(means: Matrix, counts: Matrix, within: Matrix) -> tuple[float, float]:
    """Sum the squared distances of a task's classes, minus the noise of their means.

    The degrees of freedom come with the sum.
    """
    present = counts > 0
    degrees = max(0, int(present.sum()) - 1)
    if not degrees:
        return 0.0, 0.0
    away = means[present] - means[present].mean(0)
    noise = degrees * float(_rate(counts[present]).mean()) * float(within.sum())
    return float(np.square(away).sum()) - noise, degrees


def _space(sums: Sequence[Sums]) -> tuple[Matrix, Matrix, Matrix] | None:
    """Compute a basis, (D, directions), and the variances within and between along it.

    Returns None where the sums do not show one of the two variances.
    """
    tasks = [task_sums for task_sums in sums if (task_sums.counts > 0).sum() > 1]
    free = sum(task_sums.total - (task_sums.counts > 0).sum() for task_sums in sums)
    if len(sums) < 2 or not tasks or free < 1:
        return None
    covariance = (
        sum((task_sums.within for task_sums in sums), np.zeros_like(sums[0].gram))
        / free
    )
    mean = np.trace(covariance) / len(covariance)
    if mean < _NOTHING:
        return None
    scatter, chances, degrees = np.zeros_like(covariance), 0.0, 0.0
    for task_sums in tasks:
        present = task_sums.counts > 0
        means = task_sums.means[present]
        away = means - means.mean(0)
        scatter += away.T @ away
        degrees += len(means) - 1
        # The noise of the means adds this to the scatter.
        chances += (len(means) - 1) * float(_rate(task_sums.counts[present]).mean())
    chance = chances / degrees
    # Both variances are in units of the shrunk covariance, 1 along each direction.
    unit = shrunk(covariance, _SHRINKAGE, mean)
    values, basis = eigh(scatter / degrees - chance * covariance, unit)
    noise = eigh(covariance, unit, eigvals_only=True)
    # A client whose classes do not vary would make a direction's variance 0.
    within = np.maximum(np.einsum("ij,ij->j", basis, covariance @ basis), _LEAST)
    # Kept directions are those in which means differ by more than the largest pure
    # noise (Marchenko and Pastur 1967, for this number of independent directions).
    directions = noise.sum() / noise[-1]
    edge = chance * noise[-1] * (1 + np.sqrt(directions / degrees)) ** 2
    kept = values + chance * within > edge
    return (basis[:, kept], within[kept], values[kept]) if kept.any() else None


def _rate(counts: Matrix) -> Matrix:
    """Compute the variance of means, in units of a sample's.

    A client may claim many more samples than count, so that a class has less than one.
    Such a class counts as one sample, so no client makes the noise of all large.
    """
    return 1 / np.maximum(counts, 1)
