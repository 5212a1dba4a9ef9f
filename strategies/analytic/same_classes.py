"""Which classes of different tasks are the same, told from their means alone.

Probabilistic linear discriminant analysis (Ioffe, ECCV 2006; Prince and Elder, ICCV
2007). Of a class whose true mean is mu, the mean of n samples lies at mu + e / sqrt(n),
with e from the Gaussian of a sample about its class; the mu of all classes have a
Gaussian of their own. So the distance d of two means is small if they are of one class
and large if they are of two, and with few samples neither is surprising::

    log p(d | one) - log p(d | two),   d ~ N(0, v)  or  d ~ N(0, v + 2 b),

in each direction of a basis in which both Gaussians are independent, with
``v = w (1 / n_1 + 1 / n_2)``, w and b being the variances within and between classes.
Classes of one task are different, which is where b is measured; directions in which it
could be noise are left out.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular
from scipy.optimize import linear_sum_assignment

from strategies.analytic.sums import Matrix, Sums, shrunk

Same: TypeAlias = list[dict[int, list[tuple[int, int]]]]
"""For each task, by number of another, pairs of a class of its own and the other's."""

_SHRINKAGE = 0.5
"""Of the covariance within classes, towards a sphere; on the safe side, since noise in
a direction of little variance would look like another class."""


def same_classes(sums: Sequence[Sums]) -> Same:
    """Return for each task which of its classes other tasks have as well.

    Two classes are taken for one where that is more likely than that one class among
    all candidates should look so by chance, and no class of a task is the same as two
    of another.

    Args:
        sums: of each task, over all of its samples.

    Returns:
        For each task, by number of another, pairs of a class of its own and the other's
        that is the same; empty for what stands alone.
    """
    found: Same = [{} for _ in sums]
    space = _space(sums)
    if space is None:
        return found
    basis, within, between = space
    means = [one.means @ basis for one in sums]
    needed = np.log(max(1, sum(int((one.counts > 0).sum()) for one in sums)))
    for first, second in combinations(range(len(sums)), 2):
        evidence = _evidence(
            (means[first], sums[first].counts),
            (means[second], sums[second].counts),
            within,
            between,
        )
        if evidence.max() <= needed:
            continue
        rows, columns = linear_sum_assignment(evidence, maximize=True)
        for mine, its in zip(rows.tolist(), columns.tolist(), strict=True):
            if evidence[mine, its] > needed:
                found[first].setdefault(second, []).append((mine, its))
                found[second].setdefault(first, []).append((its, mine))
    return found


_NOTHING = 1e-12
"""A variance below it is rounding: features are of length 1 at most."""
_LEAST = 1e-6
"""The least variance within classes, where that of the shrunk covariance is 1."""
_Means = tuple[Matrix, Matrix]
_NEVER = -1e9


def _evidence(one: _Means, other: _Means, within: Matrix, between: Matrix) -> Matrix:
    """Return the log-likelihood ratio of each pair of classes, shape (C, C).

    Args:
        one: means of a task, shape (C, directions), and numbers of samples, (C,).
        other: those of another task.
        within: variance of a sample about its class, shape (directions,).
        between: of classes about their mean, likewise.
    """
    (a, n), (b, m) = one, other
    known = (n > 0)[:, None] & (m > 0)
    rate = 1 / np.maximum(n, 1)[:, None] + 1 / np.maximum(m, 1)
    same = rate[:, :, None] * within
    different = same + 2 * between
    square = np.square(a[:, None] - b)
    ratio = np.log(different / same) - square * (1 / same - 1 / different)
    return np.where(known, ratio.sum(2) / 2, _NEVER)


def _space(sums: Sequence[Sums]) -> tuple[Matrix, Matrix, Matrix] | None:
    """Return a basis, and the variances within and between classes along it.

    Returns:
        Shapes (D, directions), (directions,) and (directions,); None where nothing is
        known of one of the two variances.
    """
    tasks = [one for one in sums if (one.counts > 0).sum() > 1]
    free = sum(one.total - (one.counts > 0).sum() for one in sums)
    if len(sums) < 2 or not tasks or free < 1:
        return None
    covariance = sum((one.within for one in sums), np.zeros_like(sums[0].gram)) / free
    width = len(covariance)
    mean = np.trace(covariance) / width
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
        chances += (len(means) - 1) * float((1 / one.counts[known]).mean())
    lower = cholesky(shrunk(covariance, _SHRINKAGE, mean), lower=True)
    chance = chances / degrees
    noise = _whitened(covariance, lower)
    white = _whitened(scatter / degrees, lower) - chance * noise
    values, vectors = eigh(white)
    # Whoever sends classes that do not vary where nobody's do makes it 0.
    within = np.maximum(np.einsum("ij,ij->j", vectors, noise @ vectors), _LEAST)
    # Directions in which means differ by more than the largest of pure noise would
    # (Marchenko and Pastur 1967, for as many independent directions as there are).
    (largest,) = eigh(noise, eigvals_only=True, subset_by_index=(width - 1, width - 1))
    directions = np.trace(noise) / largest
    edge = chance * largest * (1 + np.sqrt(directions / degrees)) ** 2
    kept = values + chance * within > edge
    if not kept.any():
        return None
    basis = solve_triangular(lower, vectors[:, kept], trans="T", lower=True)
    return basis, within[kept], values[kept]


def _whitened(matrix: Matrix, lower: Matrix) -> Matrix:
    """Return ``L^-1 A L^-T``."""
    half = solve_triangular(lower, matrix, lower=True)
    found: Matrix = solve_triangular(lower, half.T, lower=True)
    return found
