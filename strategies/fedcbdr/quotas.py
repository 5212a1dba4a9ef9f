"""How many samples of each class each client keeps, so that all classes have as many.

FedCBDR (Qi et al., 2025, section 3) draws a class's samples from those of all clients
together. Here each client draws its own, in proportion to how many it has, so that the
server knows of numbers alone.
"""

from collections.abc import Mapping

import numpy as np

from fcl_flower.core.types import Array


def quotas(counts: Mapping[int, Array], samples: int, seed: int) -> dict[int, Array]:
    """Return how many samples of each class each client keeps.

    Args:
        counts: how many samples of each class a client has had, int64, shape
            (classes,), by client.
        samples: that a client keeps in the mean, at least 0.
        seed: of the draw of those that keep one, where there are more classes than
            samples.

    Returns:
        int64, shape (classes,), by client; no more than it has had. Two classes differ
        by at most one in their sums, unless one of them has no more.
    """
    clients = sorted(counts)
    held = np.array([counts[client] for client in clients], np.int64)
    total, limits = samples * len(clients), held.sum(0)
    order = np.random.default_rng(seed).permutation(len(limits))
    present = order[limits[order] > 0]
    wanted = np.zeros_like(limits)
    if total < len(present):
        wanted[present[:total]] = 1
    else:
        wanted = evenly(total, limits)
    shares = [
        in_proportion(int(number), held[:, label])
        for label, number in enumerate(wanted)
    ]
    return dict(zip(clients, np.stack(shares, axis=1), strict=True))


def evenly(total: int, limits: Array) -> Array:
    """Return numbers as equal as limits allow, whose sum is at most ``total``.

    What does not divide goes to those with the highest limits; of equal ones to the
    last.

    Args:
        total: at least 0.
        limits: the largest values, int64, at least 0, shape (N,).
    """
    found = np.zeros_like(limits)
    order = np.argsort(limits, kind="stable")
    for place, index in enumerate(order):
        share = (total - int(found.sum())) // (len(limits) - place)
        found[index] = min(int(limits[index]), share)
    return found


def in_proportion(total: int, sizes: Array) -> Array:
    """Return whole numbers nearly in proportion to sizes: largest remainders.

    Of equal remainders the first come first.

    Args:
        total: their sum, from 0 to that of ``sizes``.
        sizes: int64, at least 0, shape (N,).
    """
    # Python's integers: sums and products of claimed numbers may be beyond 64 bits.
    everything = sum(map(int, sizes))
    if not everything:
        return np.zeros_like(sizes)
    products = [total * int(size) for size in sizes]
    found = np.array([product // everything for product in products], np.int64)
    left = np.array([product % everything for product in products], np.int64)
    missing = total - int(found.sum())
    found[np.argsort(-left, kind="stable")[:missing]] += 1
    return found
