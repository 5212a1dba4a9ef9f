"""Stratified cuts: every class is cut by itself, so that shares stay balanced."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]


def split_stratified(
    labels: Indices, parts: int, rng: np.random.Generator
) -> list[Indices]:
    """Return ``parts`` disjoint, sorted index arrays that cover ``labels``.

    Within a class two parts differ by at most one sample. What does not divide
    evenly goes to another part for each class, so that totals stay nearly equal.

    Args:
        labels: shape (N,), the class of each sample.
        parts: at least 1.
        rng: draws which sample goes where.
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
    """Return ``parts`` disjoint, sorted index arrays that cover ``labels``.

    Dealt like cards, class after class, since a class may not suffice for every part:
    in all, and within a class, two parts differ by at most one sample.

    Args:
        labels: shape (N,), the class of each sample.
        parts: at least 1.
        rng: draws which sample goes where.
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(by_class[part::parts]) for part in range(parts)]


def at_most(labels: Indices, most: int, rng: np.random.Generator) -> Indices:
    """Return sorted indices of ``most`` samples of each class, or all there are.

    Args:
        labels: shape (N,), the class of each sample.
        most: at least 1.
        rng: draws which samples these are.
    """
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:most]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(chosen))


def train_valid_split(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return sorted indices (kept, held out) that together cover ``labels``.

    Of each class the nearest whole number to ``fraction`` is held out, at least one
    and never all; a class with a single sample keeps it.

    Args:
        labels: shape (N,), the class of each sample.
        fraction: in (0, 1).
        rng: draws which samples are held out.
    """
    kept, held = [], []
    for label in np.unique(labels):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        number = min(max(round(fraction * len(shuffled)), 1), len(shuffled) - 1)
        held.append(shuffled[:number])
        kept.append(shuffled[number:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held))
