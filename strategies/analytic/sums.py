"""The sums behind a head, and the forms in which they travel.

h in R^D is the feature vector of a sample, of length 1 at most, and y its class. The
sums over samples are the Gram matrix ``G = sum h h'`` and, for each class, the sum of h
and the number of its samples. Both add up over clients and tasks. So neither the order
matters nor which client has which sample (AFL, arXiv:2405.16240; AFCL,
arXiv:2505.12245).

========  =====================  ===================================================
tensor    shape                  content
========  =====================  ===================================================
cross     (C, D + 1)             by class the sum of h, and behind it the number
gram      (D (D + 1) / 2,)       the upper triangle of G
within    (rows, D)              F, with F'F the scatter of h about its class's mean
parts     (S, C, D + 1)          ``cross`` of each of S random subsets
========  =====================  ===================================================

``cross`` comes with one of ``gram`` and ``within``; ``parts`` come alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.types import Array, Arrays

Matrix: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums over a set of samples.

    Attributes:
        gram: G, shape (D, D), symmetric.
        cross: by class the sum of h, and behind it the number, shape (C, D + 1).
    """

    gram: Matrix
    cross: Matrix

    @property
    def counts(self) -> Matrix:
        """The number of samples of each class, shape (C,)."""
        return self.cross[:, -1]

    @property
    def total(self) -> float:
        """The number of all samples."""
        return float(self.counts.sum())

    @property
    def mean(self) -> Matrix:
        """The mean of all samples, shape (D,)."""
        return np.asarray(self.cross[:, :-1].sum(0) / self.total)

    @property
    def means(self) -> Matrix:
        """The mean of each class, shape (C, D); zeros for a class without samples."""
        return means_of(self.cross)

    @property
    def within(self) -> Matrix:
        """The scatter of h about the means of the classes, shape (D, D)."""
        return self.gram - between(self.cross)

    def __add__(self, other: "Sums") -> "Sums":
        """Add the sums over another set of samples."""
        return Sums(self.gram + other.gram, self.cross + other.cross)


# ---- the client's side: samples to sums


def exact(h: Matrix, y: Array, classes: int) -> Arrays:
    """Encode the smaller of two exact forms: ``gram`` and ``within``."""
    count, width = h.shape
    if 2 * count > width:
        return gram(h, y, classes)
    return low_rank(h, y, classes, count)


def gram(h: Matrix, y: Array, classes: int) -> Arrays:
    """Encode ``gram``, which has the same shape for all clients."""
    return {"cross": _by_class(h, y, classes), "gram": upper_half(h.T @ h)}


def low_rank(h: Matrix, y: Array, classes: int, rank: int) -> Arrays:
    """Encode ``within`` from the ``rank`` largest eigenvalues of the scatter.

    FedRAN (arXiv:2606.11480) sends the eigenvalues of G. Here the means of the classes
    stay exact, so that a discriminant can be solved for. The server adds up the factors
    without cutting them again.
    """
    cross = _by_class(h, y, classes)
    triangle = np.linalg.qr(h - means_of(cross)[y], mode="r")
    _, values, vectors = np.linalg.svd(triangle, full_matrices=False)
    least = values.max(initial=0.0) * max(h.shape) * np.finfo(np.float64).eps
    kept = min(rank, int((values > least).sum()))
    return {"cross": cross, "within": values[:kept, None] * vectors[:kept]}


def class_sums(
    h: Matrix, y: Array, classes: int, subsets: int, rng: np.random.Generator
) -> Arrays:
    """Encode ``parts``, from which the server estimates G (STSA-E, arXiv:2506.01327).

    The samples of a class are dealt to subsets of nearly equal size.
    """
    part = np.empty(len(y), np.int64)
    for label in np.unique(y):
        mine = np.flatnonzero(y == label)
        part[rng.permutation(mine)] = np.arange(len(mine)) % subsets
    parts = [_by_class(h[part == s], y[part == s], classes) for s in range(subsets)]
    return {"parts": np.stack(parts)}


def _by_class(h: Matrix, y: Array, classes: int) -> Matrix:
    sums = np.zeros((classes, h.shape[1] + 1))
    np.add.at(sums, y, np.column_stack([h, np.ones(len(h))]))
    return sums


# ---- the server's side: sums added up


def add_up(
    received: Sequence[Arrays],
    classes: int,
    features: int,
    shares: Sequence[float] | None = None,
) -> Sums:
    """Add up clients' sums, in any form, to the sums over all their samples.

    The order decides the last bits. ``shares``, in (0, 1], say how much of each counts.
    """
    total = Sums(np.zeros((features, features)), np.zeros((classes, features + 1)))
    parts = []
    for arrays, share in zip(received, shares or [1.0] * len(received), strict=True):
        if "parts" not in arrays:
            sums = _sums(arrays)
        elif share == 1:
            parts.append(np.asarray(arrays["parts"]))
            continue
        else:  # estimated alone, as its samples count less
            sums = _estimated(np.asarray(arrays["parts"]))
        total += Sums(share * sums.gram, share * sums.cross)
    return total + _estimated(np.concatenate(parts)) if parts else total


def samples_in(arrays: Arrays) -> float:
    """Count the samples behind a client's sums, in any form."""
    return float(np.asarray(arrays.get("parts", arrays.get("cross")))[..., -1].sum())


def _sums(arrays: Arrays) -> Sums:
    cross = np.asarray(arrays["cross"])
    if "gram" in arrays:
        return Sums(symmetric(np.asarray(arrays["gram"])), cross)
    factor = np.asarray(arrays["within"])
    return Sums(factor.T @ factor + between(cross), cross)


def _estimated(parts: Matrix) -> Sums:
    """Estimate the sums from those over random subsets (STSA-E, arXiv:2506.01327).

    A class has N samples in J subsets that are not empty. s_j are the subsets' sums,
    m_j their numbers and P the sum of all::

        G ~ (N - 1) / (J - 1) sum_j s_j s_j' / m_j - (N - J) / ((J - 1) N) P P'

    The estimate is exact where each subset has one sample. It is P P' / N where J is 1.
    """
    cross = parts.sum(0)
    gram = np.zeros((parts.shape[2] - 1,) * 2)
    for label, (*_, count) in enumerate(cross):
        if not count:
            continue
        mine = parts[parts[:, label, -1] > 0, label]
        subsets = len(mine)
        scale = (count - 1) / (subsets - 1) if subsets > 1 else 0.0
        roots = mine[:, :-1] / np.sqrt(mine[:, -1:])
        whole = cross[label, :-1]
        # This is the docstring's estimate with the terms of P P' collected.
        gram += scale * (roots.T @ roots)
        gram += (1 - scale) / count * np.outer(whole, whole)
    return Sums(gram, cross)


def between(cross: Matrix) -> Matrix:
    """Compute ``sum_c n_c mean_c mean_c'``, shape (D, D), from sums (C, D + 1)."""
    roots = cross[:, :-1] / np.sqrt(_divisors(cross))
    return np.asarray(roots.T @ roots)


def means_of(cross: Matrix) -> Matrix:
    """Compute the mean of each class, shape (C, D); zeros without samples."""
    return np.asarray(cross[:, :-1] / _divisors(cross))


def _divisors(cross: Matrix) -> Matrix:
    counts = cross[:, -1:]
    return np.where(counts > 0, counts, 1.0)


def shrunk(covariance: Matrix, shrinkage: float, sphere: float) -> Matrix:
    """Shrink a covariance towards a sphere: ``(1 - s) V + s sphere I``."""
    drawn = (1 - shrinkage) * covariance
    drawn[np.diag_indices(len(drawn))] += shrinkage * sphere
    return np.asarray(drawn)


def upper_half(gram: Array) -> Array:
    """Pack a symmetric matrix to its n (n + 1) / 2 numbers, row by row."""
    return np.asarray(gram[np.triu_indices(len(gram))])


def symmetric(numbers: Array) -> Array:
    """Unpack `upper_half` to the matrix."""
    size = (int(np.sqrt(8 * len(numbers) + 1)) - 1) // 2
    upper = np.zeros((size, size), numbers.dtype)
    upper[np.triu_indices(size)] = numbers
    return np.asarray(upper + np.triu(upper, 1).T)
