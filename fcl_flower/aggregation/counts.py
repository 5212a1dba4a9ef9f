"""By how many examples a client counts: it says so itself, and may say anything."""

from collections.abc import Mapping
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
        limit: the most examples, in medians of those who have any; at least 1, or 0 for
            no limit. Of an even number the median is the lower middle one, which no
            minority of clients can make large.
    """
    counts = {client: update.num_examples for client, update in updates.items()}
    some = [count for count in counts.values() if count]
    most = max(some, default=0)
    if weighting == "uniform":
        most = min(most, 1)
    elif limit and some:
        most = int(limit * median_low(some))
    return {
        client: replace(update, num_examples=min(counts[client], most))
        for client, update in updates.items()
    }
