"""Which foreign adapters a client goes on with, where some validate worse."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from fcl_flower.core.types import Payload

Learned: TypeAlias = tuple[Payload, dict[str, float], float]
"""State and metrics after a round of training, and the loss in validation."""
Tried: TypeAlias = Callable[[Collection[str]], Learned]
"""Trains the first round of a task with the adapters of some clients alone."""


def without_harmful(tried: Tried, others: Sequence[str]) -> Learned:
    """Return the first round of a task without adapters that harm.

    Where those of all others validate worse than none, each sender's are tried by
    themselves, and together those that validate better than none.

    Args:
        tried: trains.
        others: whose adapters came, in one order.
    """
    whole = tried(others)
    if not others:
        return whole
    best = without = tried(())
    if not _loss(without) < _loss(whole):
        return whole
    helpful = []
    for one in others if len(others) > 1 else ():
        alone = tried([one])
        if _loss(alone) < _loss(without):
            helpful.append(one)
        best = min(best, alone, key=_loss)
    if 1 < len(helpful) < len(others):
        best = min(best, tried(helpful), key=_loss)
    return best


def _loss(learned: Learned) -> float:
    return learned[-1]
