"""Which concept model a cluster model replaces: server concept matching.

Jiang, Sen and Borcea 2025, algorithm 1. Symbols: ``distances[j, k]`` is
Distance(w'_j, w_k), ``record`` is distRecord. The rule as printed lets a record only
fall, so that a concept freezes after one small step, and lets a later cluster
overwrite an earlier one; two rules of ours do neither.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from strategies.concept_matching import MatchingRule
from strategies.concept_matching.gram_matrix import Labels, Matrix

NONE = -1


def match(
    distances: Matrix,
    between: Callable[[int], Matrix],
    record: Matrix,
    rule: MatchingRule,
    slack: float,
) -> tuple[Labels, Matrix]:
    """Return the concept model that each cluster model replaces, and the next record.

    * ``literal``: algorithm 1. The clusters choose in turn: the nearest concept model
      that is nearer than its record, where earlier choices of this round already count.
    * ``relaxed``: each cluster and each concept at most once, the nearest pair first,
      among the pairs within ``slack`` times the concept's record.
    * ``assignment``: among the same pairs, as many as can be had one to one, and of
      those choices the one of least total distance (Kuhn 1955).

    Args:
        distances: shape (J, K), of the cluster models to the concept models; J may
            be 0.
        between: gives the distances, shape (J,), of all cluster models to one of
            them; the literal rule asks for them, the others do not.
        record: shape (K,), the distance of each concept model's last accepted update;
            infinite before the first.
        rule: one of the three.
        slack: at least 1; not used by the literal rule.

    Returns:
        Shape (J,), `NONE` where nothing is replaced, or where a later cluster has
        replaced it again; and shape (K,). Except with the literal rule a record may
        rise: with a longer step, or ``slack`` times where a concept model keeps still
        although it is the nearest of a cluster that replaces none. A distance of 0
        leaves it alone: nothing could be nearer than that.
    """
    if rule == "literal":
        return _literal(distances, between, record)
    admissible = distances <= slack * record
    if rule == "relaxed":
        taken = _nearest_first(distances, admissible)
    else:
        taken = _assigned(distances, admissible)
    clusters = np.flatnonzero(taken != NONE)
    moved = distances[clusters, taken[clusters]]
    following = record.copy()
    following[taken[clusters][moved > 0]] = moved[moved > 0]
    # Whoever refuses its nearest cluster will refuse less: nothing freezes for good.
    for nearest in distances[taken == NONE].argmin(axis=1):
        if nearest not in taken:
            following[nearest] *= slack
    return taken, following


def _literal(
    distances: Matrix, between: Callable[[int], Matrix], record: Matrix
) -> tuple[Labels, Matrix]:
    """Return what algorithm 1 does, line by line."""
    distances, record = distances.copy(), record.copy()
    taken = np.full(len(distances), NONE)
    for cluster in range(len(distances)):
        near = np.where(distances[cluster] < record, distances[cluster], np.inf)
        concept = int(near.argmin())
        if near[concept] < np.inf:  # the paper writes to W[null] otherwise
            taken[taken == concept] = NONE
            taken[cluster] = concept
            record[concept] = near[concept]
            distances[:, concept] = between(cluster)
    return taken, record


def _nearest_first(distances: Matrix, admissible: npt.NDArray[np.bool_]) -> Labels:
    """Return the greedy choice: the nearest admissible pair, then the next."""
    taken = np.full(len(distances), NONE)
    for pair in np.argsort(distances, axis=None, kind="stable"):
        cluster, concept = divmod(int(pair), distances.shape[1])
        if (
            admissible[cluster, concept]
            and taken[cluster] == NONE
            and concept not in taken
        ):
            taken[cluster] = concept
    return taken


def _assigned(distances: Matrix, admissible: npt.NDArray[np.bool_]) -> Labels:
    """Return the largest one-to-one choice of admissible pairs, of least total."""
    taken = np.full(len(distances), NONE)
    # In shares of the largest no choice of admissible pairs costs more than one pair
    # that is not admissible.
    largest = distances.max(where=admissible, initial=0) or 1.0
    costs = np.where(admissible, distances / largest, min(distances.shape) + 1)
    clusters, concepts = linear_sum_assignment(costs)
    chosen = admissible[clusters, concepts]
    taken[clusters[chosen]] = concepts[chosen]
    return taken
