"""Partitions of samples into disjoint parts, class by class: balanced or skewed."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]


def split_stratified(
    labels: Indices, parts: int, rng: np.random.Generator
) -> list[Indices]:
    """Cut samples into disjoint, sorted parts, balanced class by class.

    Within a class two parts differ by at most one sample. The remainder of each class
    goes to other parts, so that the parts' sizes stay nearly equal.
    """
    shares: list[list[Indices]] = [[] for _ in range(parts)]
    for shift, label in enumerate(np.unique(labels)):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        for part, piece in enumerate(np.array_split(shuffled, parts)):
            shares[(part + shift) % parts].append(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def split_in_turn(
    labels: Indices, parts: int, rng: np.random.Generator
) -> list[Indices]:
    """Deal samples to disjoint, sorted parts like cards, class after class.

    Two parts differ by at most one sample, in all and within a class. A class may have
    fewer samples than there are parts.
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(by_class[part::parts]) for part in range(parts)]


def split_dirichlet(
    labels: Indices, parts: int, beta: float, rng: np.random.Generator
) -> list[Indices]:
    """Cut samples into disjoint, sorted parts, skewed by class.

    Each class is cut in proportions of a symmetric Dirichlet distribution (Yurochkin et
    al., ICML 2019, https://arxiv.org/abs/1905.12022, section 4). A part that has its
    even share of all samples gets no more, as in the released code of TARGET and
    LANDER. This bounds how far the sizes differ. Parts may stay empty.

    Args:
        labels: labels of the samples, shape (N,), N at least 1.
        parts: number of parts.
        beta: concentration in (0, 1e6]: near 0 a class goes to one part, far above 1
            all parts are alike.
        rng: source of random numbers.
    """
    shares: list[list[Indices]] = [[] for _ in range(parts)]
    sizes = np.zeros(parts, np.int64)
    for label in np.unique(labels):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        # Some part is always short, since the parts lack at least this class's samples.
        # The order is random, since rounding favours some places.
        short = rng.permutation(np.flatnonzero(sizes * parts < len(labels)))
        # A subset of Dirichlet proportions, scaled to sum to 1, is Dirichlet again.
        ends = np.cumsum(rng.dirichlet(np.full(len(short), beta))) * len(shuffled)
        cuts = np.rint(ends[:-1]).astype(np.int64)
        for part, piece in zip(short, np.split(shuffled, cuts), strict=True):
            shares[part].append(piece)
            sizes[part] += len(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def at_most(labels: Indices, most: int, rng: np.random.Generator) -> Indices:
    """Draw up to ``most`` samples of each class; the indices are sorted."""
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:most]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(chosen))


def train_valid_split(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Hold out a fraction of each class; return sorted indices (rest, held out).

    The number of held-out samples of a class is rounded, at least one and never all. A
    class with a single sample keeps it. A fraction of 0 holds out no sample.
    """
    if not fraction:
        return np.arange(len(labels)), np.arange(0)
    rest, held_out = [], []
    for label in np.unique(labels):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        number = min(max(round(fraction * len(shuffled)), 1), len(shuffled) - 1)
        held_out.append(shuffled[:number])
        rest.append(shuffled[number:])
    return np.sort(np.concatenate(rest)), np.sort(np.concatenate(held_out))
