"""From the sums of all tasks to all heads."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from strategies.analytic import HeadKind
from strategies.analytic.heads import Head, discriminants, ridges
from strategies.analytic.penalties import Held, chosen
from strategies.analytic.same_classes import Same, same_classes

Key = TypeVar("Key", bound=Hashable)


def solve(
    heads: Mapping[Key, Held],
    kind: HeadKind,
    penalty: float,
    *,
    owners: Sequence[int] = (),
    matching: bool = False,
) -> tuple[dict[Key, Head], list[float], int]:
    """Return every head, the penalty of each, and how many classes were joined.

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
        The heads, their penalties, and the pairs of classes of two heads that are the
        same.
    """
    held = list(heads.values())
    owners = owners or [0] * len(held)
    sums = [train.plus(valid) for train, valid in held]
    same: Same = [{} for _ in sums]
    if kind == "discriminant" and matching:
        same = same_classes(sums)
    penalties = [penalty] * len(held) if penalty else chosen(held, kind, owners, same)
    if kind == "discriminant":
        found = discriminants(sums, penalties, owners, same)
    else:
        found = ridges(sums, penalties)
    joined = sum(len(pairs) for of_head in same for pairs in of_head.values()) // 2
    return dict(zip(heads, found, strict=True)), penalties, joined
