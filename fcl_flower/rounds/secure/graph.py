"""The graph of masks: all clients with all, or each with k on a random ring.

SecAgg+, Bell et al., CCS 2020, https://eprint.iacr.org/2020/704: each client has k
neighbours, k in the order of log n, and a threshold of their shares gives its secrets.
A sum over n clients costs O(n log n) in place of O(n^2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import config_error

COMPLETE = 50
"""Up to so many clients the graph is complete. That takes less than twice the time of a
round without masks, and fewer clients than the threshold learn nothing more."""

MOST_CLIENTS = 2**20
"""The most clients of one sum."""

SECRECY, SUCCESS = 40, 20
"""Limits of each sum over a ring: the server learns more with a probability of at most
2^-40, and it cannot compute the sum with a probability of at most 2^-20."""


@dataclass(frozen=True, slots=True)
class MaskGraph:
    """The number of clients that each client shares masks with.

    Attributes:
        neighbours: the number of other clients that hold shares of its secrets.
        threshold: the number of shares that give a secret.
    """

    neighbours: int
    threshold: int


def mask_graph(clients: int, section: FederationSection) -> MaskGraph:
    """Choose the graph for a sum over ``clients`` that exchange keys.

    It is complete for few clients, and else a ring.

    Raises:
        ConfigError: no ring fulfils the settings.
    """
    threshold = section.sum_threshold(clients)
    if clients <= COMPLETE:
        return MaskGraph(clients - 1, threshold)
    dropping = clients - threshold
    ring = least_ring(clients, section.colluders(clients), dropping)
    if ring is None:
        raise config_error(
            "federation.secure_collusion",
            section.secure_collusion,
            f"less for {clients} clients, of whom {dropping} may drop out",
        )
    return ring


@lru_cache
def least_ring(clients: int, colluding: int, dropping: int) -> MaskGraph | None:
    """Choose the fewest neighbours on a random ring, an even number below n - 1.

    None where no such ring withstands so many ``colluding`` clients, which show the
    server all that they know, and so many others that drop out.

    The rule is that of Google's implementation for a server that follows the protocol
    (https://github.com/google-parfait/federated-compute, `graph_parameter_finder`). The
    remaining clients form one connected piece. No client has ``threshold`` colluding
    neighbours, and each has ``threshold`` neighbours that stay.
    """
    for neighbours in range(2, clients - 1, 2):
        if not _stays_connected(clients, neighbours, colluding + dropping):
            continue
        counts, chances = _hypergeometric(clients, colluding, neighbours)
        beyond = np.append(np.cumsum(chances[:0:-1])[::-1], 0.0)  # P[X > count]
        most = int(counts[np.argmax(beyond <= 2.0 ** -(SECRECY + 1) / clients)])
        counts, chances = _hypergeometric(clients, clients - dropping, neighbours)
        within = np.cumsum(chances)  # P[X <= count]
        stay = int(counts[np.argmax(within >= 2.0**-SUCCESS / clients)])
        if stay > most:
            return MaskGraph(neighbours, max(most + 1, 2))
    return None


def _stays_connected(clients: int, neighbours: int, lost: int) -> bool:
    """Tell whether a ring hardly ever falls apart without ``lost`` random clients.

    It falls apart by two gaps, each of k/2 lost clients side by side. Each of the
    n(n - k - 1) / 2 pairs of gaps has the probability C(n - k, b - k) / C(n, b), with b
    lost clients.
    """
    if neighbours > lost:
        return True
    pairs = clients * (clients - neighbours - 1) / 2
    choices = _log_choose(clients - neighbours, lost - neighbours)
    all_lost = math.log(pairs) + choices - _log_choose(clients, lost)
    return all_lost < -(SECRECY + 1) * math.log(2)


def _hypergeometric(
    clients: int, marked: int, drawn: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return how many of the ``drawn`` may be ``marked``, and with what probability."""
    others = clients - marked
    counts = np.arange(max(0, drawn - others), min(marked, drawn) + 1)
    least = int(counts[0])
    first = _log_choose(marked, least) + _log_choose(others, drawn - least)
    before = counts[:-1]
    # Each probability follows from the one before: P[x + 1] / P[x].
    more = (marked - before) * (drawn - before)
    less = (before + 1) * (others - drawn + before + 1)
    steps = np.concatenate([[0.0], np.cumsum(np.log(more / less))])
    return counts, np.exp(first - _log_choose(clients, drawn) + steps)


def _log_choose(total: int, chosen: int) -> float:
    logs = map(math.lgamma, (total + 1, chosen + 1, total - chosen + 1))
    return next(logs) - sum(logs)


def holders(order: Sequence[int], graph: MaskGraph) -> dict[int, list[int]]:
    """Place clients on a ring in an ``order``; return the holders of each one's shares.

    They are the ``k / 2`` clients before it, itself, and the ``k / 2`` after it,
    ascending. Of two clients both hold shares of each other, or neither does.
    """
    if graph.neighbours >= len(order) - 1:
        return dict.fromkeys(order, sorted(order))
    reach = range(-(graph.neighbours // 2), graph.neighbours // 2 + 1)
    return {
        client: sorted(order[(place + step) % len(order)] for step in reach)
        for place, client in enumerate(order)
    }
