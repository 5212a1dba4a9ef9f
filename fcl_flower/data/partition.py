"""Cuts of samples into disjoint parts, class by class: balanced or skewed."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]


def split_stratified(
    labels: Indices, parts: int, rng: np.random.Generator
) -> list[Indices]:
    """Cut samples into disjoint, sorted parts, balanced class by class.

    Within a class two parts differ by at most one sample. What does not divide
    evenly goes to another part for each class, so that totals stay nearly equal.
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

    A class may not suffice for every part: in all, and within a class, two parts differ
    by at most one sample.
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(by_class[part::parts]) for part in range(parts)]


def split_dirichlet(
    labels: Indices, parts: int, beta: float, rng: np.random.Generator
) -> list[Indices]:
    """Cut samples into disjoint, sorted parts, skewed by class.

    Each class is cut in proportions of a symmetric Dirichlet distribution (Yurochkin et
    al., ICML 2019, https://arxiv.org/abs/1905.12022, section 4) of concentration
    ``beta`` in (0, 1e6]: near 0 a class goes to one part, far above 1 all parts are
    alike. A part that has its even share of all samples gets none of the classes that
    follow, as in the released code of TARGET and LANDER: that bounds how far the sizes
    differ. Parts may stay empty. ``labels`` has shape (N,), N at least 1.
    """
    shares: list[list[Indices]] = [[] for _ in range(parts)]
    sizes = np.zeros(parts, np.int64)
    for label in np.unique(labels):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        # Never none: together they have fewer than all samples as long as one is left.
        # In any order, since what rounding gives or takes goes by the place.
        short = rng.permutation(np.flatnonzero(sizes * parts < len(labels)))
        # Proportions of some parts of a Dirichlet distribution are Dirichlet again.
        ends = np.cumsum(rng.dirichlet(np.full(len(short), beta))) * len(shuffled)
        cuts = np.rint(ends[:-1]).astype(np.int64)
        for part, piece in zip(short, np.split(shuffled, cuts), strict=True):
            shares[part].append(piece)
            sizes[part] += len(piece)
    return [np.sort(np.concatenate(share)) for share in shares]


def at_most(labels: Indices, most: int, rng: np.random.Generator) -> Indices:
    """Draw ``most`` samples of each class, or all there are; sorted."""
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:most]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(chosen))


def train_valid_split(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Hold samples out of each class: sorted indices (kept, held out).

    The nearest whole number to ``fraction`` of a class is held out, at least one and
    never all; a class with a single sample keeps it. With 0 none is.
    """
    if not fraction:
        return np.arange(len(labels)), np.arange(0)
    kept, held = [], []
    for label in np.unique(labels):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        number = min(max(round(fraction * len(shuffled)), 1), len(shuffled) - 1)
        held.append(shuffled[:number])
        kept.append(shuffled[number:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))
