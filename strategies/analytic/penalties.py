"""What chooses the penalty of a head: sums over validation samples.

The likelihood of the validation samples under the discriminant's Gaussians, where one
head is everybody's; what its logits leave unexplained of their labels, where each task
has a head; and their squared error under the regression. None needs a sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve

from strategies.analytic import HeadKind
from strategies.analytic.heads import (
    about,
    centred,
    covariance_of,
    inverse,
    mean_eigenvalue,
    mean_of,
    of_each,
)
from strategies.analytic.same_classes import Same
from strategies.analytic.sums import Matrix, Sums, means_of

SHRINKAGES = (1e-5, 1e-4, 3e-4, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
PENALTIES = tuple(10 ** (k / 2) for k in range(-8, 5))
UNKNOWN = 0.1
"""The penalty where there are no validation samples to choose one by."""
LEANING = 50
"""Validation samples that the tasks of a client are worth when one chooses."""


class Held(NamedTuple):
    """The sums that one head is solved from.

    Attributes:
        train: over training samples.
        valid: over validation samples; of no sample where there are none.
    """

    train: Sums
    valid: Sums


def chosen(
    held: Sequence[Held], kind: HeadKind, owners: Sequence[int], same: Same
) -> list[float]:
    """Return for each head the penalty that suits its validation samples.

    A discriminant that is everybody's takes that of the highest likelihood. Where each
    task has a head, it takes what is best on its own validation samples and on
    `LEANING` more, for which all tasks of its client speak alike: few samples choose
    badly by themselves, and what suits a task of many need not suit another. No other
    client has a say.

    Args:
        held: of each head.
        kind: of the heads.
        owners: the client of each head.
        same: which classes of other heads are the same as its own.
    """
    if kind == "discriminant" and len(held) == 1 and held[0].valid.total:
        return [SHRINKAGES[int(np.argmax(likelihoods(*held[0], SHRINKAGES)))]]
    candidates = SHRINKAGES if kind == "discriminant" else PENALTIES
    lost = np.zeros((len(held), len(candidates)))
    if kind == "discriminant":
        train = [one.train for one in held]
        for place, (cross, covariance) in enumerate(of_each(train, owners, same)):
            if held[place].valid.total:
                lost[place] = unexplained(
                    cross, covariance, held[place].valid, candidates
                )
    else:
        for place, one in enumerate(held):
            if one.valid.total:
                lost[place] = squared_errors(*one, candidates)
    samples, of_client = np.array([one.valid.total for one in held]), np.array(owners)
    found = []
    for mine, owner, count in zip(lost, owners, samples, strict=True):
        its = lost[(of_client == owner) & (samples > 0)]
        if len(its):
            leaning = count * mine + LEANING * its.mean(0)
            found.append(candidates[int(np.argmin(leaning))])
        else:
            found.append(UNKNOWN)
    return found


def likelihoods(train: Sums, valid: Sums, shrinkages: Sequence[float]) -> list[float]:
    """Return for each shrinkage the mean log-likelihood of the validation samples.

    Up to a constant, that of a sample in the Gaussian of its own class.
    """
    covariance = covariance_of([train])
    values, vectors = np.linalg.eigh(covariance)
    values, mean = np.maximum(values, 0.0), mean_eigenvalue(covariance)
    means = train.means
    crossed = valid.cross[:, :-1].T @ means
    spread = valid.gram - crossed - crossed.T + (means.T * valid.counts) @ means
    along = ((spread @ vectors) * vectors).sum(0) / valid.total
    spectra = [(1 - s) * values + s * mean for s in shrinkages]
    return [-float((np.log(one) + along / one).sum()) / 2 for one in spectra]


def unexplained(
    cross: Matrix, covariance: Matrix, valid: Sums, shrinkages: Sequence[float]
) -> list[float]:
    """Return for each shrinkage how little the logits tell of the validation labels.

    Where each task has a head, few samples stand for a class, and the likelihood, which
    looks at every direction, asks for a shrinkage that is too small to tell classes
    apart. This is ``1 - R^2`` of a regression of the one-hot labels on the logits, with
    one slope for all classes: 0 to 1.

    Args:
        cross: by class the sum of the training samples, and their number behind it.
        covariance: what is shrunk, shape (D, D).
        valid: sums over validation samples, at least one.
        shrinkages: to be compared, each in (0, 1].
    """
    gram, target = about(valid, mean_of(valid), valid.counts / valid.total)
    spread = float((valid.counts * (1 - valid.counts / valid.total)).sum())
    known = cross[:, -1] > 0
    means = means_of(cross)
    away = np.where(known[:, None], means - means[known].mean(0), 0.0)
    missed = []
    for shrinkage in shrinkages:
        weight = cho_solve(inverse(covariance, shrinkage), away.T)
        power = float(((gram @ weight) * weight).sum())
        shared = max(0.0, float((target * weight).sum()))
        missed.append(1 - (shared**2 / (power * spread) if power * spread > 0 else 0.0))
    return missed


def squared_errors(train: Sums, valid: Sums, penalties: Sequence[float]) -> list[float]:
    """Return for each penalty the squared error on the validation samples.

    Less a constant: the sum over classes, the mean over samples.
    """
    scatter, crossed = centred(train)
    values, vectors = np.linalg.eigh(scatter)
    values = np.maximum(values, 0.0)
    gram, target = about(valid, mean_of(train), train.counts / train.total)
    # All of it in the eigenvectors' basis, where a penalty costs a division.
    gram, target = vectors.T @ gram @ vectors, vectors.T @ target
    crossed = vectors.T @ crossed
    errors = []
    for penalty in penalties:
        gamma = penalty * mean_eigenvalue(scatter)
        weight = crossed / (values + gamma)[:, None]
        error = ((gram @ weight - 2 * target) * weight).sum()
        errors.append(float(error) / valid.total)
    return errors
