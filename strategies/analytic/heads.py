"""Heads in closed form: a linear discriminant, and ridge regression onto the labels.

Both follow from `Sums` alone, so the result does not depend on which client had which
sample.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from strategies.analytic import HeadKind
from strategies.analytic.match_classes import Same, match_classes
from strategies.analytic.sums import Matrix, Sums, means_of, shrunk

NEVER = -1e4
"""The logit of a class without samples; it is finite, so that losses are."""
SHRINKAGES = (1e-5, 1e-4, 3e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
PENALTIES = tuple(10 ** (k / 2) for k in range(-8, 5))
UNKNOWN = 0.1
"""The penalty where no validation samples can choose one."""
LEANING = 50
"""The number of validation samples that the mean over a client's tasks counts as."""


class Head(NamedTuple):
    """A linear head: logits are ``h @ weight.T + bias``, shapes (C, D) and (C,)."""

    weight: Matrix
    bias: Matrix


class HeadSums(NamedTuple):
    """The sums behind one head; validation samples choose its penalty."""

    train: Sums
    valid: Sums


def solve(
    held: Sequence[HeadSums],
    kind: HeadKind,
    penalty: float,
    *,
    owners: Sequence[int] = (),
    matching: bool = False,
) -> tuple[list[Head], list[float], int]:
    """Solve for every head, choosing penalties and joining equal classes.

    The penalty is chosen on heads of the training samples. The returned heads are of
    all samples, validation included.

    Args:
        held: the sums of each head.
        kind: the kind of the heads.
        penalty: the penalty of all heads; 0 to choose it by the validation samples.
        owners: the client of each head; empty where all clients share one head.
        matching: learn classes of different heads that are the same from the samples of
            all; for discriminants alone.

    Returns:
        The heads, their penalties, and the number of pairs of classes of two heads that
        are the same.
    """
    owners = owners or [0] * len(held)
    sums = [train + valid for train, valid in held]
    same: Same = [{} for _ in sums]
    if kind == "discriminant" and matching:
        same = match_classes(sums)
    penalties = [penalty] * len(held) if penalty else chosen(held, kind, owners, same)
    if kind == "discriminant":
        heads = discriminants(sums, penalties, owners, same)
    else:
        heads = ridges(sums, penalties)
    joined = sum(len(pairs) for matches in same for pairs in matches.values()) // 2
    return heads, penalties, joined


def discriminants(
    sums: Sequence[Sums], shrinkages: Sequence[float], owners: Sequence[int], same: Same
) -> list[Head]:
    """Compute linear discriminants, whose covariance is shrunk towards a sphere.

    ``S = (1 - s) V + s trace(V) / D I``; ``w_c = S^-1 mean_c`` and ``b_c = -mean_c' w_c
    / 2 + log(n_c / n)``. A single head is scikit-learn's `LinearDiscriminantAnalysis`
    with solver ``lsqr``. V is then the scatter about the means of the classes, by
    sample, and s the shrinkage in (0, 1].

    With several heads, a mean is over all samples of its class. n_c / n is the share in
    the task, since other tasks may have a class more often. V is first the covariance
    of the task and of those that share a class with it. It is drawn towards that of all
    tasks of its client, and this one towards that of all clients. Each time the result
    is the mean of a posterior under an inverse Wishart prior of D degrees (after
    Friedman, JASA 1989). So a task with few samples relies on other tasks, and a task
    with enough samples stays as it is.
    """
    heads = []
    of_heads = zip(sums, shrinkages, of_each(sums, owners, same), strict=True)
    for mine, shrinkage, (cross, covariance) in of_heads:
        means, present = means_of(cross), mine.counts > 0
        weight = cho_solve(_factor(covariance, shrinkage), means.T).T
        bias = np.full(len(means), NEVER)
        shares = mine.counts[present] / mine.total
        bias[present] = np.log(shares) - (means * weight).sum(1)[present] / 2
        heads.append(Head(weight, bias))
    return heads


def of_each(
    sums: Sequence[Sums], owners: Sequence[int], same: Same
) -> Iterator[tuple[Matrix, Matrix]]:
    """Compute for each head its class sums, over all clients, and its covariance.

    See `discriminants`; shapes (C, D + 1) and (D, D).
    """
    all_tasks = _drawn(sums, _covariance(sums))
    towards = {
        owner: _drawn(
            [
                task_sums
                for task_sums, its in zip(sums, owners, strict=True)
                if its == owner
            ],
            all_tasks,
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


def ridges(sums: Sequence[Sums], penalties: Sequence[float]) -> list[Head]:
    """Compute ridge regressions onto one-hot labels, with an intercept.

    ``W = (G_c + gamma I)^-1 Q_c``, the sums centred; the intercept has no penalty. It
    is scikit-learn's `Ridge` with ``alpha = gamma = penalty * trace(G_c) / D``.
    """
    heads = []
    for task_sums, penalty in zip(sums, penalties, strict=True):
        shares = task_sums.counts / task_sums.total
        scatter, crossed = _centred(task_sums, task_sums.mean, shares)
        scatter[np.diag_indices(len(scatter))] += penalty * _mean_eigenvalue(scatter)
        weight = cho_solve(cho_factor(scatter), crossed).T
        bias = np.where(task_sums.counts == 0, NEVER, shares - weight @ task_sums.mean)
        heads.append(Head(weight, bias))
    return heads


def _drawn(sums: Sequence[Sums], prior: Matrix) -> Matrix:
    total = sum(task_sums.total for task_sums in sums)
    trust = total / (total + len(prior))
    return np.asarray(trust * _covariance(sums) + (1 - trust) * prior)


def _covariance(sums: Sequence[Sums]) -> Matrix:
    within = sum((task_sums.within for task_sums in sums), np.zeros_like(sums[0].gram))
    return np.asarray(within / sum(task_sums.total for task_sums in sums))


def _factor(covariance: Matrix, shrinkage: float) -> tuple[Matrix, bool]:
    drawn = shrunk(covariance, shrinkage, _mean_eigenvalue(covariance))
    factor: tuple[Matrix, bool] = cho_factor(drawn)
    return factor


def _mean_eigenvalue(matrix: Matrix) -> float:
    """Average the eigenvalues; return 1 where all are 0, as for equal samples."""
    mean = float(np.trace(matrix)) / len(matrix)
    return mean if mean > 1e-9 else 1.0


def _centred(sums: Sums, mean: Matrix, shares: Matrix) -> tuple[Matrix, Matrix]:
    """Compute ``sum (h - mean)(h - mean)'`` and ``sum (h - mean)(y - shares)'``."""
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


# ---- the choice of the penalty


def chosen(
    held: Sequence[HeadSums], kind: HeadKind, owners: Sequence[int], same: Same
) -> list[float]:
    """Choose for each head the penalty that suits its validation samples.

    A discriminant for all clients gets the penalty with the highest likelihood. Where
    each task has a head, the penalty is best on its own validation samples and on
    `LEANING` more. For these, all tasks of its client count alike. Few samples choose
    badly by themselves, and the best penalty of a large task need not suit another.
    Other clients have no influence.
    """
    if kind == "discriminant" and len(held) == 1 and held[0].valid.total:
        return [SHRINKAGES[int(np.argmax(likelihoods(*held[0], SHRINKAGES)))]]
    candidates = SHRINKAGES if kind == "discriminant" else PENALTIES
    samples = np.array([head_sums.valid.total for head_sums in held])
    lost = np.zeros((len(held), len(candidates)))
    if kind == "discriminant":
        of_heads = of_each([head_sums.train for head_sums in held], owners, same)
        for place, (cross, covariance) in enumerate(of_heads):
            valid = held[place].valid
            if samples[place]:
                lost[place] = unexplained(cross, covariance, valid, candidates)
    else:
        for place in np.flatnonzero(samples).tolist():
            lost[place] = squared_errors(*held[place], candidates)
    penalties = []
    for mine, owner, count in zip(lost, owners, samples, strict=True):
        its = lost[(np.array(owners) == owner) & (samples > 0)]
        if len(its):
            leaning = count * mine + LEANING * its.mean(0)
            penalties.append(candidates[int(np.argmin(leaning))])
        else:
            penalties.append(UNKNOWN)
    return penalties


def likelihoods(train: Sums, valid: Sums, shrinkages: Sequence[float]) -> list[float]:
    """Compute for each shrinkage the mean log-likelihood of the validation samples.

    It is that of a sample in the Gaussian of its own class, up to a constant.
    """
    covariance = _covariance([train])
    values, vectors = np.linalg.eigh(covariance)
    values, mean = np.maximum(values, 0.0), _mean_eigenvalue(covariance)
    means = train.means
    crossed = valid.cross[:, :-1].T @ means
    spread = valid.gram - crossed - crossed.T + (means.T * valid.counts) @ means
    along = ((spread @ vectors) * vectors).sum(0) / valid.total
    spectra = [(1 - s) * values + s * mean for s in shrinkages]
    return [
        -float((np.log(spectrum) + along / spectrum).sum()) / 2 for spectrum in spectra
    ]


def unexplained(
    cross: Matrix, covariance: Matrix, valid: Sums, shrinkages: Sequence[float]
) -> list[float]:
    """Compute for each shrinkage how little the logits tell of the validation labels.

    The result is ``1 - R^2``, from 0 to 1. The regression is that of the one-hot labels
    on the logits, with one slope for all classes. It replaces the likelihood where each
    task has a head. There few samples stand for a class. The likelihood looks at every
    direction, and asks for a shrinkage that is too small to tell classes apart.

    Args:
        cross: the class sums of the training samples.
        covariance: the covariance to shrink, shape (D, D).
        valid: sums over the validation samples.
        shrinkages: the candidates.
    """
    shares = valid.counts / valid.total
    gram, target = _centred(valid, valid.mean, shares)
    spread = float((valid.counts * (1 - shares)).sum())
    present = cross[:, -1] > 0
    means = means_of(cross)
    away = np.where(present[:, None], means - means[present].mean(0), 0.0)
    missed = []
    for shrinkage in shrinkages:
        weight = cho_solve(_factor(covariance, shrinkage), away.T)
        power = float(((gram @ weight) * weight).sum())
        shared = max(0.0, float((target * weight).sum()))
        missed.append(1 - (shared**2 / (power * spread) if power * spread > 0 else 0.0))
    return missed


def squared_errors(train: Sums, valid: Sums, penalties: Sequence[float]) -> list[float]:
    """Compute for each penalty the squared error on the validation samples.

    The error is the sum over classes and the mean over samples, up to a constant.
    """
    mean, shares = train.mean, train.counts / train.total
    scatter, crossed = _centred(train, mean, shares)
    values, vectors = np.linalg.eigh(scatter)
    values = np.maximum(values, 0.0)
    gram, target = _centred(valid, mean, shares)
    # In the eigenvectors' basis a penalty costs a division only.
    gram, target = vectors.T @ gram @ vectors, vectors.T @ target
    crossed = vectors.T @ crossed
    errors = []
    for penalty in penalties:
        gamma = penalty * _mean_eigenvalue(scatter)
        weight = crossed / (values + gamma)[:, None]
        error = ((gram @ weight - 2 * target) * weight).sum()
        errors.append(float(error) / valid.total)
    return errors
