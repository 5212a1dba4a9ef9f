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
from strategies.analytic.same_classes import Same, same_classes
from strategies.analytic.sums import Matrix, Sums, shrunk

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
    heads: Mapping[Key, Held],
    kind: HeadKind,
    penalty: float,
    *,
    owners: Sequence[int] = (),
    matching: bool = False,
) -> tuple[dict[Key, Head], float, int]:
    """Return every head, the penalty that all have, and how many classes were joined.

    The penalty is chosen on heads of the training samples; those that are returned are
    of all samples, validation included.

    Args:
        heads: what each is solved from.
        kind: of the heads.
        penalty: 0 for what suits the validation samples.
        owners: which client each head belongs to; empty where one head is everybody's.
        matching: learn classes of different heads that are the same from the samples of
            all; of discriminants alone.

    Returns:
        The heads, the penalty, and the pairs of classes of two heads that are the same.
    """
    held = list(heads.values())
    is_discriminant = kind == "discriminant"
    if not penalty and not any(one.valid.total for one in held):
        penalty = UNKNOWN
    elif not penalty and is_discriminant and len(held) == 1:
        penalty = SHRINKAGES[int(np.argmax(likelihoods(held, SHRINKAGES)))]
    elif not penalty and is_discriminant:
        penalty = SHRINKAGES[int(np.argmin(unexplained(held, SHRINKAGES)))]
    elif not penalty:
        penalty = PENALTIES[int(np.argmin(squared_errors(held, PENALTIES)))]
    sums = [train.plus(valid) for train, valid in held]
    same: Same = [{} for _ in sums]
    if is_discriminant and matching:
        same = same_classes(sums)
    if is_discriminant:
        found = discriminants(sums, penalty, owners or [0] * len(sums), same)
    else:
        found = ridges(sums, penalty)
    joined = sum(len(pairs) for of_head in same for pairs in of_head.values()) // 2
    return dict(zip(heads, found, strict=True)), penalty, joined


def discriminants(
    sums: Sequence[Sums], shrinkage: float, owners: Sequence[int], same: Same
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
        shrinkage: s, in (0, 1].
        owners: the client of each head.
        same: which classes of other heads are the same as its own.
    """
    everybody = _drawn(sums, _covariance(sums))
    towards = {
        owner: _drawn(
            [one for one, its in zip(sums, owners, strict=True) if its == owner],
            everybody,
        )
        for owner in set(owners)
    }
    heads = []
    for mine, owner, relatives in zip(sums, owners, same, strict=True):
        cross = mine.cross.copy()
        for number, pairs in relatives.items():
            for label, its in pairs:
                cross[label] += sums[number].cross[its]
        related = [mine, *(sums[number] for number in relatives)]
        inverse = _inverse(_drawn(related, towards[owner]), shrinkage)
        heads.append(_discriminant(cross, inverse, mine.counts))
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
    spectra = _spectra(covariance, values, shrinkages)
    return [-float((np.log(one) + along / one).sum()) / 2 for one in spectra]


def unexplained(held: Sequence[Held], shrinkages: Sequence[float]) -> list[float]:
    """Return for each shrinkage how little the logits tell of the validation labels.

    Where each task has a head, few samples stand for a class, and the likelihood, which
    looks at every direction, asks for a shrinkage that is too small to tell classes
    apart. This is ``1 - R^2`` of a regression of the one-hot labels on the logits, with
    one slope for all classes of a head: the mean over heads by numbers of samples.
    """
    covariance = _covariance([train for train, _ in held])
    values, vectors = np.linalg.eigh(covariance)
    spectra = _spectra(covariance, values, shrinkages)
    missed = np.zeros(len(shrinkages))
    for train, valid in held:
        if not valid.total:
            continue
        middle = _mean(valid)
        gram, target = _about(valid, middle, valid.counts / valid.total)
        gram, target = vectors.T @ gram @ vectors, vectors.T @ target
        spread = float((valid.counts * (1 - valid.counts / valid.total)).sum())
        means = train.means[train.counts > 0]
        away = np.zeros_like(train.means)
        away[train.counts > 0] = (means - means.mean(0)) @ vectors
        for place, one in enumerate(spectra):
            weight = (away / one).T
            power = float(((gram @ weight) * weight).sum())
            shared = max(0.0, float((target * weight).sum()))
            known = shared**2 / (power * spread) if power * spread > 0 else 0.0
            missed[place] += valid.total * (1 - known)
    return [float(one) for one in missed / sum(v.total for _, v in held)]


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


def _discriminant(cross: Matrix, inverse: tuple[Matrix, bool], counts: Matrix) -> Head:
    """Return a head of the means in ``cross``, with the shares in ``counts``."""
    known = counts > 0
    means = cross[:, :-1] / np.maximum(cross[:, -1:], 1)
    weight = cho_solve(inverse, means.T).T
    bias = np.full(len(means), NEVER)
    shares = counts[known] / counts.sum()
    bias[known] = np.log(shares) - (means * weight).sum(1)[known] / 2
    return Head(weight, bias)


def _inverse(covariance: Matrix, shrinkage: float) -> tuple[Matrix, bool]:
    """Return what `cho_solve` takes for the shrunk covariance."""
    drawn = shrunk(covariance, shrinkage, _mean_eigenvalue(covariance))
    factor: tuple[Matrix, bool] = cho_factor(drawn)
    return factor


def _spectra(
    covariance: Matrix, values: Matrix, shrinkages: Sequence[float]
) -> list[Matrix]:
    """Return the eigenvalues of a covariance, shrunk by each of some shrinkages."""
    mean, values = _mean_eigenvalue(covariance), np.maximum(values, 0.0)
    return [(1 - s) * values + s * mean for s in shrinkages]


def _drawn(sums: Sequence[Sums], prior: Matrix) -> Matrix:
    """Return the covariance of some tasks and D samples more that are the prior's."""
    total = sum(one.total for one in sums)
    trust = total / (total + len(prior))
    drawn: Matrix = trust * _covariance(sums) + (1 - trust) * prior
    return drawn


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
