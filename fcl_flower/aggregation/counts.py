"""By how many examples a client counts: it says so itself, and may say anything."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from fcl_flower.aggregation import Weighting
from fcl_flower.core.types import Update


def counted(
    updates: Mapping[int, Update], weighting: Weighting, limit: float
) -> dict[int, Update]:
    """Return the updates with the numbers of examples by which they are to count.

    Args:
        updates: by client.
        weighting: ``uniform`` lets all count alike that have examples.
        limit: see `most_counted`.
    """
    counts = {client: update.num_examples for client, update in updates.items()}
    uniform = weighting == "uniform"
    most = 1 if uniform else most_counted(counts.values(), limit)
    return {
        client: replace(update, num_examples=int(min(counts[client], most)))
        for client, update in updates.items()
    }


def shares_counted(counts: Sequence[float], limit: float) -> list[float]:
    """Return which share of its examples each counts by, in (0, 1].

    Args:
        counts: the examples of each, above 0.
        limit: see `most_counted`.
    """
    most = most_counted(counts, limit)
    return [min(1.0, most / count) for count in counts]


def most_counted(counts: Iterable[float], limit: float) -> float:
    """Return the most examples that anybody counts by; infinite for no limit.

    Args:
        counts: the examples of each.
        limit: in medians of those who have any; at least 1, or 0 for no limit. Of an
            even number the median is the lower middle one, which no minority can make
            large.
    """
    some = [count for count in counts if count]
    return limit * median_low(some) if limit and some else math.inf
