"""Heads in closed form: a linear discriminant, and ridge regression onto the labels.

Both follow from `Sums` alone, and so does what chooses their penalty: the likelihood of
the validation samples under the discriminant's Gaussians, and their squared error under
the regression. Neither needs a sample, so that the result does not depend on who had
which.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from strategies.analytic import HeadKind
from strategies.analytic.sums import Matrix, Sums

NEVER = -1e4
"""The logit of a class without samples; finite, so that losses are."""
SHRINKAGES = (1e-5, 1e-4, 3e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
PENALTIES = tuple(10 ** (k / 2) for k in range(-8, 5))
UNKNOWN = 0.1
"""The penalty where there are no validation samples to choose one by."""

Key = TypeVar("Key", bound=Hashable)


class Head(NamedTuple):
    """Logits are ``h @ weight.T + bias``.

    Attributes:
        weight: shape (C, D).
        bias: shape (C,).
    """

    weight: Matrix
    bias: Matrix


class Held(NamedTuple):
    """The sums that one head is solved from.

    Attributes:
        train: over training samples.
        valid: over validation samples; of no sample where there are none.
    """

    train: Sums
    valid: Sums


def solve(
    heads: Mapping[Key, Held], kind: HeadKind, penalty: float
) -> tuple[dict[Key, Head], float]:
    """Return every head, and the penalty that all of them have.

    The penalty is chosen on heads of the training samples; those that are returned are
    of all samples, validation included.

    Args:
        heads: what each is solved from. Discriminants share their covariance, so that
            the samples of one head count for the others.
        kind: of the heads.
        penalty: 0 for what suits the validation samples.
    """
    held = list(heads.values())
    is_discriminant = kind == "discriminant"
    if not penalty and not any(one.valid.total for one in held):
        penalty = UNKNOWN
    elif not penalty and is_discriminant:
        penalty = SHRINKAGES[int(np.argmax(likelihoods(held, SHRINKAGES)))]
    elif not penalty:
        penalty = PENALTIES[int(np.argmin(squared_errors(held, PENALTIES)))]
    sums = [train.plus(valid) for train, valid in held]
    found = (discriminants if is_discriminant else ridges)(sums, penalty)
    return dict(zip(heads, found, strict=True)), penalty


def discriminants(sums: Sequence[Sums], shrinkage: float) -> list[Head]:
    """Return linear discriminants with one covariance, shrunk towards a sphere.

    ``S = (1 - s) W / N + s trace(W / N) / D I`` with W the scatter about the means of
    the classes; ``w_c = S^-1 mean_c`` and ``b_c = -mean_c' w_c / 2 + log(n_c / n)``.
    One head is scikit-learn's `LinearDiscriminantAnalysis` of solver ``lsqr``.

    Args:
        sums: of each head.
        shrinkage: s, in (0, 1].
    """
    covariance = _covariance(sums)
    width = len(covariance)
    shrunk = (1 - shrinkage) * covariance
    shrunk[np.diag_indices(width)] += shrinkage * _mean_eigenvalue(covariance)
    factor = cho_factor(shrunk)
    heads = []
    for of_head in sums:
        known, means = of_head.counts > 0, of_head.means
        weight = cho_solve(factor, means.T).T
        bias = np.full(len(means), NEVER)
        shares = of_head.counts[known] / of_head.total
        bias[known] = np.log(shares) - (means * weight).sum(1)[known] / 2
        heads.append(Head(weight, bias))
    return heads


def likelihoods(held: Sequence[Held], shrinkages: Sequence[float]) -> list[float]:
    """Return for each shrinkage the mean log-likelihood of the validation samples.

    Up to a constant, that of a sample in the Gaussian of its own class.
    """
    covariance = _covariance([train for train, _ in held])
    values, vectors = np.linalg.eigh(covariance)
    spread = np.zeros_like(covariance)
    for train, valid in held:
        means = train.means
        crossed = valid.cross[:, :-1].T @ means
        spread += valid.gram - crossed - crossed.T + (means.T * valid.counts) @ means
    along = ((spread @ vectors) * vectors).sum(0) / sum(v.total for _, v in held)
    mean, values = _mean_eigenvalue(covariance), np.maximum(values, 0.0)
    shrunk = [(1 - s) * values + s * mean for s in shrinkages]
    return [-float((np.log(one) + along / one).sum()) / 2 for one in shrunk]


def ridges(sums: Sequence[Sums], penalty: float) -> list[Head]:
    """Return ridge regressions onto one-hot labels, with an intercept.

    ``W = (G_c + gamma I)^-1 Q_c``, the sums centred; the intercept is not penalised.
    Scikit-learn's `Ridge` with ``alpha = gamma = penalty * trace(G_c) / D``.

    Args:
        sums: of each head.
        penalty: in mean eigenvalues of the centred Gram matrix, above 0.
    """
    heads = []
    for of_head in sums:
        scatter, crossed = _centred(of_head)
        scatter[np.diag_indices(len(scatter))] += penalty * _mean_eigenvalue(scatter)
        weight = cho_solve(cho_factor(scatter), crossed).T
        bias = of_head.counts / of_head.total - weight @ _mean(of_head)
        bias[of_head.counts == 0] = NEVER
        heads.append(Head(weight, bias))
    return heads


def squared_errors(held: Sequence[Held], penalties: Sequence[float]) -> list[float]:
    """Return for each penalty the squared error on the validation samples.

    Less a constant: the sum over samples and classes.
    """
    errors = np.zeros(len(penalties))
    for train, valid in held:
        scatter, crossed = _centred(train)
        values, vectors = np.linalg.eigh(scatter)
        values = np.maximum(values, 0.0)
        mean, shares = _mean(train), train.counts / train.total
        gram, target = _about(valid, mean, shares)
        # All of it in the eigenvectors' basis, where a penalty costs a division.
        gram, target = vectors.T @ gram @ vectors, vectors.T @ target
        crossed = vectors.T @ crossed
        for place, penalty in enumerate(penalties):
            gamma = penalty * _mean_eigenvalue(scatter)
            weight = crossed / (values + gamma)[:, None]
            errors[place] += ((gram @ weight - 2 * target) * weight).sum()
    return [float(error) for error in errors]


def _covariance(sums: Sequence[Sums]) -> Matrix:
    within = sum((of_head.within for of_head in sums), np.zeros_like(sums[0].gram))
    covariance: Matrix = within / sum(of_head.total for of_head in sums)
    return covariance


def _mean_eigenvalue(matrix: Matrix) -> float:
    """Return it; 1 where all are 0, as of samples that do not differ."""
    mean = float(np.trace(matrix)) / len(matrix)
    return mean if mean > 1e-9 else 1.0


def _centred(sums: Sums) -> tuple[Matrix, Matrix]:
    """Return Gram matrix and class sums about the mean, of (D, D) and (D, C)."""
    return _about(sums, _mean(sums), sums.counts / sums.total)


def _mean(sums: Sums) -> Matrix:
    mean: Matrix = sums.cross[:, :-1].sum(0) / sums.total
    return mean


def _about(sums: Sums, mean: Matrix, shares: Matrix) -> tuple[Matrix, Matrix]:
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
