"""Heads in closed form: a linear discriminant, and ridge regression onto the labels.

Both follow from `Sums` alone, so that the result does not depend on who had which
sample.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from strategies.analytic.same_classes import Same
from strategies.analytic.sums import Matrix, Sums, means_of, shrunk

NEVER = -1e4
"""The logit of a class without samples; finite, so that losses are."""


class Head(NamedTuple):
    """Logits are ``h @ weight.T + bias``.

    Attributes:
        weight: shape (C, D).
        bias: shape (C,).
    """

    weight: Matrix
    bias: Matrix


def discriminants(
    sums: Sequence[Sums], shrinkages: Sequence[float], owners: Sequence[int], same: Same
) -> list[Head]:
    """Return linear discriminants, whose covariance is shrunk towards a sphere.

    ``S = (1 - s) V + s trace(V) / D I``; ``w_c = S^-1 mean_c`` and
    ``b_c = -mean_c' w_c / 2 + log(n_c / n)``. One head alone is scikit-learn's
    `LinearDiscriminantAnalysis` of solver ``lsqr``, with V the scatter about the means
    of the classes, by sample.

    Of several heads, a mean is over all samples of its class, and n_c / n the share in
    the task, since others may have a class more often. V is the covariance of the tasks
    that share a class with it, itself included, drawn towards that of all tasks of its
    client, and this one towards that of everybody: each time as the mean of a posterior
    under an inverse Wishart prior of D degrees (after Friedman, JASA 1989). So whoever
    has few samples leans on others, and nobody whose samples suffice is disturbed.

    Args:
        sums: of each head.
        shrinkages: s of each head, in (0, 1].
        owners: the client of each head.
        same: which classes of other heads are the same as its own.
    """
    return [
        _discriminant(cross, inverse(covariance, shrinkage), mine.counts)
        for mine, shrinkage, (cross, covariance) in zip(
            sums, shrinkages, of_each(sums, owners, same), strict=True
        )
    ]


def ridges(sums: Sequence[Sums], penalties: Sequence[float]) -> list[Head]:
    """Return ridge regressions onto one-hot labels, with an intercept.

    ``W = (G_c + gamma I)^-1 Q_c``, the sums centred; the intercept is not penalised.
    Scikit-learn's `Ridge` with ``alpha = gamma = penalty * trace(G_c) / D``.

    Args:
        sums: of each head.
        penalties: of each, in mean eigenvalues of the centred Gram matrix, above 0.
    """
    heads = []
    for of_head, penalty in zip(sums, penalties, strict=True):
        scatter, crossed = centred(of_head)
        scatter[np.diag_indices(len(scatter))] += penalty * mean_eigenvalue(scatter)
        weight = cho_solve(cho_factor(scatter), crossed).T
        bias = of_head.counts / of_head.total - weight @ mean_of(of_head)
        bias[of_head.counts == 0] = NEVER
        heads.append(Head(weight, bias))
    return heads


def of_each(
    sums: Sequence[Sums], owners: Sequence[int], same: Same
) -> Iterator[tuple[Matrix, Matrix]]:
    """Return for each head its class sums, of all who have the class, and covariance.

    See `discriminants`; shapes (C, D + 1) and (D, D).
    """
    everybody = _drawn(sums, covariance_of(sums))
    towards = {
        owner: _drawn(
            [one for one, its in zip(sums, owners, strict=True) if its == owner],
            everybody,
        )
        for owner in set(owners)
    }
    for mine, owner, relatives in zip(sums, owners, same, strict=True):
        cross = mine.cross.copy()
        for number, pairs in relatives.items():
            for label, its in pairs:
                cross[label] += sums[number].cross[its]
        related = [mine, *(sums[number] for number in relatives)]
        yield cross, _drawn(related, towards[owner])


def inverse(covariance: Matrix, shrinkage: float) -> tuple[Matrix, bool]:
    """Return what `cho_solve` takes for the shrunk covariance."""
    drawn = shrunk(covariance, shrinkage, mean_eigenvalue(covariance))
    factor: tuple[Matrix, bool] = cho_factor(drawn)
    return factor


def covariance_of(sums: Sequence[Sums]) -> Matrix:
    """Return the covariance of samples of some tasks about their classes, (D, D)."""
    within = sum((of_head.within for of_head in sums), np.zeros_like(sums[0].gram))
    covariance: Matrix = within / sum(of_head.total for of_head in sums)
    return covariance


def mean_eigenvalue(matrix: Matrix) -> float:
    """Return it; 1 where all are 0, as of samples that do not differ."""
    mean = float(np.trace(matrix)) / len(matrix)
    return mean if mean > 1e-9 else 1.0


def centred(sums: Sums) -> tuple[Matrix, Matrix]:
    """Return Gram matrix and class sums about the mean, of (D, D) and (D, C)."""
    return about(sums, mean_of(sums), sums.counts / sums.total)


def mean_of(sums: Sums) -> Matrix:
    """Return the mean of all samples, shape (D,)."""
    mean: Matrix = sums.cross[:, :-1].sum(0) / sums.total
    return mean


def about(sums: Sums, mean: Matrix, shares: Matrix) -> tuple[Matrix, Matrix]:
    """Return ``sum (h - mean)(h - mean)'`` and ``sum (h - mean)(y - shares)'``."""
    whole = sums.cross[:, :-1].sum(0)
    count = sums.total
    outer = np.outer(whole, mean)
    gram = sums.gram - outer - outer.T + count * np.outer(mean, mean)
    crossed = (
        sums.cross[:, :-1].T
        - np.outer(whole, shares)
        - np.outer(mean, sums.counts)
        + count * np.outer(mean, shares)
    )
    return gram, crossed


def _discriminant(cross: Matrix, factor: tuple[Matrix, bool], counts: Matrix) -> Head:
    """Return a head of the means in ``cross``, with the shares in ``counts``."""
    known = counts > 0
    means = means_of(cross)
    weight = cho_solve(factor, means.T).T
    bias = np.full(len(means), NEVER)
    shares = counts[known] / counts.sum()
    bias[known] = np.log(shares) - (means * weight).sum(1)[known] / 2
    return Head(weight, bias)


def _drawn(sums: Sequence[Sums], prior: Matrix) -> Matrix:
    """Return the covariance of some tasks and D samples more that are the prior's."""
    total = sum(one.total for one in sums)
    trust = total / (total + len(prior))
    drawn: Matrix = trust * covariance_of(sums) + (1 - trust) * prior
    return drawn
