"""Which of a class's samples are worth keeping: orders in which they would be kept.

An order holds the places of all n samples of a class, best first, so that a memory
that has to shrink keeps the first of it.
"""

from collections.abc import Callable

import numpy as np

from fcl_flower.core.types import Array


def herding_order(features: Array, count: int) -> Array:
    """Return the ``count`` samples whose mean is nearest to that of all, greedily.

    Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725, algorithm 4: the k-th
    is ``argmin_x |mu - (phi(x) + sum_{j<k} phi(p_j)) / k|``. Features are divided by
    their length first, as in section 2.1 there, and their mean is not, as in the
    authors' code. That may draw a sample again, which then moves the mean twice; here
    each comes once.

    Args:
        features: of one class, shape (n, d).
        count: how many are asked for.

    Returns:
        int64, shape (min(count, n),): places, best first.
    """
    unit = normalized(np.asarray(features, np.float64))
    mean = unit.mean(0) if len(unit) else unit.sum(0)
    total, left = np.zeros_like(mean), np.ones(len(unit), bool)
    chosen = []
    for k in range(1, min(count, len(unit)) + 1):
        distance = np.linalg.norm(mean - (unit + total) / k, axis=1)
        best = int(np.where(left, distance, np.inf).argmin())
        left[best] = False
        total += unit[best]
        chosen.append(best)
    return np.array(chosen, np.int64)


def leverage_scores(features: Array, gram: Array) -> Array:
    """Return ``tau_j = x_j^T G^+ x_j`` of each sample, shape (n,), at least 0.

    The squared length of a sample's row in U of the singular value decomposition X =
    U S V^T, if G = X^T X is over all samples: FedCBDR (2025),
    https://arxiv.org/abs/2507.07712, takes it from U; that G is enough is our remark.

    Args:
        features: shape (n, d).
        gram: G, shape (d, d), symmetric.
    """
    x = np.asarray(features, np.float64)
    inverse = np.linalg.pinv(np.asarray(gram, np.float64), hermitian=True)
    found: Array = np.einsum("nd,de,ne->n", x, inverse, x)
    return np.maximum(found, 0.0)


def drawn_order(weights: Array, rng: np.random.Generator) -> Array:
    """Return samples in the order in which they are drawn without replacement.

    At each draw a sample's probability is its weight over that of all that are left
    (Efraimidis and Spirakis, Information Processing Letters 2006: the order of
    ``-log(u) / w``). Those without weight come last.

    Args:
        weights: at least 0, shape (n,).
        rng: from which one number is drawn for each sample.

    Returns:
        int64, shape (n,): places.
    """
    waits = -np.log1p(-rng.random(len(weights)))
    keys = np.full(len(weights), np.inf)
    np.divide(waits, weights, out=keys, where=np.asarray(weights) > 0)
    order: Array = np.argsort(keys, kind="stable")
    return order


def ranks_by_class(labels: Array, order: Callable[[Array], Array]) -> Array:
    """Return when each sample's turn comes among those of its class.

    Args:
        labels: shape (N,).
        order: from the places of a class's samples, ascending, to which of them come,
            first to last; who does not comes after all who do.

    Returns:
        int64, shape (N,): from 0 in each class, N for those who do not come.
    """
    ranks = np.full(len(labels), len(labels))
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        chosen = order(of_class)
        ranks[of_class[chosen]] = np.arange(len(chosen))
    return ranks


def normalized(features: Array) -> Array:
    """Return features divided by their length; zeros stay zeros."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit: Array = features / np.where(length > 0, length, 1.0)
    return unit
