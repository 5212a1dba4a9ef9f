"""Which classes of different tasks are the same, told from their means alone.

Probabilistic linear discriminant analysis (Ioffe, ECCV 2006; Prince and Elder, ICCV
2007). Of a class whose true mean is mu, the mean of n samples lies at mu + e / sqrt(n),
with e from the Gaussian of a sample about its class; the mu of all classes have a
Gaussian of their own. So the distance d of two means is small if they are of one class
and large if they are of two, and with few samples neither is surprising::

    log p(d | one) - log p(d | two),   d ~ N(0, v)  or  d ~ N(0, v + 2 r b),

in each direction of a basis in which both Gaussians are independent, with
``v = w (1 / n_1 + 1 / n_2)``, w and b being the variances within and between classes.
Classes of one task are different, which is where b is measured; directions in which it
could be noise are left out.

Where tasks differ in kind, the classes of some are closer to each other than those of
others, and would be taken for one by the b of everybody. So r is how far apart the
classes of these two tasks are, as a share of b, and half of that, since among many
classes of others the nearest are nearer than most.
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
"""For each task, by number of another, pairs of a class of its own and the other's."""

_SHRINKAGE = 0.5
"""Of the covariance within classes, towards a sphere; on the safe side, since noise in
a direction of little variance would look like another class."""
_NEAREST = 0.5
"""How far apart different classes of two tasks are at least, as a share of the variance
between the classes of these tasks."""
_NOTHING = 1e-12
"""A variance below it is rounding: features are of length 1 at most."""
_LEAST = 1e-6
"""The least variance within classes, where that of the shrunk covariance is 1."""
_NEVER = -1e9


def match_classes(sums: Sequence[Sums]) -> Same:
    """Match for each task those of its classes that other tasks have as well.

    No class of a task is the same as two of another. Of all ways to match the classes
    of two tasks the most probable is taken, if it is more probable than none. Expected
    beforehand is that of all other tasks one has classes in common with this one; each
    number of them is as likely, and so is each matching of that number. So classes that
    come together speak for each other, and a single one needs more evidence.
    """
    found: Same = [{} for _ in sums]
    space = _space(sums)
    if space is None:
        return found
    basis, within, between = space
    means = [one.means @ basis for one in sums]
    spreads = [
        _spread(mean, one.counts, within) for mean, one in zip(means, sums, strict=True)
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
            found[first].setdefault(second, []).append((mine, its))
            found[second].setdefault(first, []).append((its, mine))
    return found


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
    known = (n > 0)[:, None] & (m > 0)
    rate = _rate(n)[:, None] + _rate(m)
    same = rate[:, :, None] * within
    different = same + 2 * between
    square = np.square(a[:, None] - b)
    ratio = np.log(different / same) - square * (1 / same - 1 / different)
    return np.where(known, ratio.sum(2) / 2, _NEVER)


def _matching(evidence: Matrix, others: int) -> list[tuple[int, int]]:
    if evidence.max() <= 0:
        return []
    known = evidence > _NEVER
    rows, columns = np.flatnonzero(known.any(1)), np.flatnonzero(known.any(0))
    evidence = evidence[np.ix_(rows, columns)]
    numbers = np.arange(1, min(evidence.shape) + 1)
    # As many ways there are to choose so many classes of each task, and to pair them.
    ways = -gammaln(numbers + 1)
    for size in evidence.shape:
        ways += gammaln(size + 1) - gammaln(size - numbers + 1)
    known_before = -ways - np.log(len(numbers) + 1) - np.log(max(1, others))
    # If each class were matched with its nearest, whoever else is.
    nearest = np.sort(evidence.max(1))[::-1][: len(numbers)]
    ceiling = nearest.cumsum() + known_before
    best: list[tuple[int, int]] = []
    most = 0.0
    for at in np.argsort(-ceiling, kind="stable"):
        if ceiling[at] <= most:
            break
        # Whoever is not matched is matched with one that stands for nobody.
        count, other = evidence.shape
        size = count + other - int(numbers[at])
        padded = np.zeros((size, size))
        padded[:count, :other] = evidence
        padded[count:, other:] = _NEVER
        mine, its = linear_sum_assignment(padded, maximize=True)
        pairs = (mine < count) & (its < other)
        mine, its = mine[pairs], its[pairs]
        weight = evidence[mine, its].sum() + known_before[at]
        if weight > most:
            most = weight
            best = list(zip(rows[mine].tolist(), columns[its].tolist(), strict=True))
    return best


def _spread(means: Matrix, counts: Matrix, within: Matrix) -> tuple[float, float]:
    """Sum the squares by which a task's classes are apart, less the means' own noise.

    With it come the degrees of freedom.
    """
    known = counts > 0
    degrees = max(0, int(known.sum()) - 1)
    if not degrees:
        return 0.0, 0.0
    away = means[known] - means[known].mean(0)
    noise = degrees * float(_rate(counts[known]).mean()) * float(within.sum())
    return float(np.square(away).sum()) - noise, degrees


def _space(sums: Sequence[Sums]) -> tuple[Matrix, Matrix, Matrix] | None:
    """Compute a basis, (D, directions), and the variances within and between along it.

    None where nothing is known of one of the two variances.
    """
    tasks = [one for one in sums if (one.counts > 0).sum() > 1]
    free = sum(one.total - (one.counts > 0).sum() for one in sums)
    if len(sums) < 2 or not tasks or free < 1:
        return None
    covariance = sum((one.within for one in sums), np.zeros_like(sums[0].gram)) / free
    mean = np.trace(covariance) / len(covariance)
    if mean < _NOTHING:
        return None
    scatter, chances, degrees = np.zeros_like(covariance), 0.0, 0.0
    for one in tasks:
        known = one.counts > 0
        means = one.means[known]
        away = means - means.mean(0)
        scatter += away.T @ away
        degrees += len(means) - 1
        # What the means' own noise adds to it.
        chances += (len(means) - 1) * float(_rate(one.counts[known]).mean())
    chance = chances / degrees
    # Both in units of the shrunk covariance, which is 1 along each direction.
    unit = shrunk(covariance, _SHRINKAGE, mean)
    values, basis = eigh(scatter / degrees - chance * covariance, unit)
    noise = eigh(covariance, unit, eigvals_only=True)
    # Whoever sends classes that do not vary where nobody's do makes it 0.
    within = np.maximum(np.einsum("ij,ij->j", basis, covariance @ basis), _LEAST)
    # Directions in which means differ by more than the largest of pure noise would
    # (Marchenko and Pastur 1967, for as many independent directions as there are).
    directions = noise.sum() / noise[-1]
    edge = chance * noise[-1] * (1 + np.sqrt(directions / degrees)) ** 2
    kept = values + chance * within > edge
    return (basis[:, kept], within[kept], values[kept]) if kept.any() else None


def _rate(counts: Matrix) -> Matrix:
    """Compute the variance of means, in that of a sample.

    Of less than one sample, of which there is a part where a client claims many more of
    other classes than count, it is that of one: nobody makes everybody's noise large.
    """
    return 1 / np.maximum(counts, 1)
