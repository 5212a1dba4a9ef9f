"""Clustering of clients' models, and the choice of concept models to replace.

These are the five clusterings and the matchings of Jiang, Sen and Borcea 2025 (section
V and algorithm 1), without a matrix of all weights. A clustering that looks only at
Euclidean distances between N models of P weights can work on N points of at most N - 1
coordinates. These are the coordinates of classical scaling (Torgerson 1952), which come
from the N x N Gram matrix. For many models the Gram matrix may be that of count
sketches (Charikar, Chen, Farach-Colton, ICALP 2002). They are also called feature
hashing (Weinberger et al., ICML 2009, https://arxiv.org/abs/0902.2206).

Only floating tensors count: BatchNorm's counters say nothing about a concept.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans
from sklearn.metrics import silhouette_score

from fcl_flower.core.types import Array, Arrays
from strategies.concept_matching import (
    ClusteringMethod,
    ConceptMatchingParams,
    MatchingRule,
    Metric,
)

Matrix: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]

NONE = NOISE = -1
"""The label of a model that belongs to no cluster, or replaces no concept."""
APART = 2.0
"""The distance of two starts in units of a step: that of opposite steps from one
start."""
_CELLS = 2**21
"""The number of weights in one pass."""
_METRICS = {
    "manhattan": ("cityblock", np.add),
    "euclidean": ("sqeuclidean", np.add),
    "chebyshev": ("chebyshev", np.maximum),
}
_EQUAL = 1e-6
"""The smallest share of the largest distance that coordinates from a Gram matrix
show."""
_STEP = 0.97
_SMALLEST = 1.1
"""The ratio of two successive radii of DBSCAN, and the bound above which radii are."""


# ---- distances and coordinates of models


def gram(models: Sequence[Arrays]) -> Matrix:
    """Compute the inner products of N models, centred on their mean, (N, N).

    Models of one concept may differ a thousand times less than those of two. In squares
    that is a factor of a million, so products are float64, not float32.
    """
    total = np.zeros((len(models), len(models)))
    for block in _blocks(models):
        block -= block[:1].copy()  # equal models leave exact zeros, without rounding
        total += block @ block.T
    return _centred(total)


def gram_of_directions(
    models: Sequence[Arrays], starts: Sequence[Arrays], origin: Labels
) -> Matrix:
    """Compute the inner products of N models' steps, each scaled to length 1, (N, N).

    ``origin`` (N,) is the number of each model's start. Neither the distance of two
    starts nor the length of a step tells anything of the concepts. So any two starts
    count as `APART`. In these units a model is a point: the coordinates of its unit
    step, and K more, which are sqrt(2) for its own start and else 0. A model that did
    not move has no direction, and lies at its start.
    """
    count = len(models)
    total = np.zeros((count, count))
    for block in _blocks([*models, *starts]):
        steps = block[:count] - block[count:][origin]
        total += steps @ steps.T
    lengths = np.sqrt(total.diagonal())
    scales = np.divide(1, lengths, out=np.zeros(count), where=lengths > 0)
    together = origin[:, None] == origin
    return _centred(total * np.outer(scales, scales) + APART**2 / 2 * together)


def sketched(models: Sequence[Arrays], buckets: int, seed: int) -> list[Arrays]:
    """Draw count sketches of the models: one tensor ``sketch`` each, float64.

    Each weight is added to, or subtracted from, a random bucket, the same for each
    model. The squared distance of two sketches has that of their models as its mean.
    Its relative standard deviation is at most sqrt(2 / buckets): 2.2 % for 4096
    buckets. Sketches of different seeds cannot be compared.
    """
    rng = np.random.default_rng(seed)
    sketches = np.zeros((len(models), buckets))
    for parts in _stretches(models, _CELLS):
        # The upper half of the cells are the buckets with a negative sign.
        cells = rng.integers(0, 2 * buckets, len(parts[0]))
        for sketch, part in zip(sketches, parts, strict=True):
            sums = np.bincount(cells, weights=part, minlength=2 * buckets)
            sketch += sums[:buckets] - sums[buckets:]
    return [{"sketch": sketch} for sketch in sketches]


def embedding(gram: Matrix) -> Matrix:
    """Compute points with the distances of N centred models, (N, r) with r < N.

    They are the principal coordinates, widest first. In each the entry of largest
    magnitude is positive. Distances below about 1e-7 of the largest are lost in the
    rounding of a product.
    """
    values, vectors = np.linalg.eigh(gram)
    # Rounding leaves small eigenvalues of either sign where there is no direction.
    real = values > max(values[-1], 0) * len(gram) * np.finfo(np.float64).eps
    points = (vectors[:, real] * np.sqrt(values[real]))[:, ::-1]
    largest = np.abs(points).argmax(axis=0)
    flipped: Matrix = points * np.sign(points[largest, np.arange(points.shape[1])])
    return flipped


def distances(
    models: Sequence[Arrays], others: Sequence[Arrays], metric: Metric
) -> Matrix:
    """Compute the distances of J models, perhaps none, from K others, (J, K)."""
    name, join = _METRICS[metric]
    total = np.zeros((len(models), len(others)))
    for block in _blocks([*models, *others]):
        part = cdist(block[: len(models)], block[len(models) :], name)
        join(total, part, out=total)
    return np.sqrt(total) if metric == "euclidean" else total


def _centred(products: Matrix) -> Matrix:
    mean = products.mean(axis=0)
    centred: Matrix = products - mean - mean[:, None] + mean.mean()
    return centred


def _stretches(models: Sequence[Arrays], width: int) -> Iterator[list[Array]]:
    for name, tensor in models[0].items():
        if tensor.dtype.kind == "f":
            flat = [np.asarray(model[name]).reshape(-1) for model in models]
            for start in range(0, len(flat[0]), width):
                yield [values[start : start + width] for values in flat]


def _blocks(models: Sequence[Arrays]) -> Iterator[Matrix]:
    """Yield stretches of weights, (N, width); the next one overwrites a block."""
    width = max(1, _CELLS // len(models))
    room = np.empty(len(models) * width)
    for parts in _stretches(models, width):
        block = room[: len(models) * len(parts[0])].reshape(len(models), -1)
        yield np.stack(parts, out=block)


# ---- clusters of models


def cluster(
    coordinates: Matrix, origin: Labels, params: ConceptMatchingParams, seed: int
) -> tuple[Labels, float]:
    """Cluster the models; also compute the mean silhouette of the choice.

    The methods need different numbers:

    - ``k-means``, ``agglomerative`` (Ward) and ``birch`` take a number of clusters. It
      is the one from 2 up with the largest silhouette (Rousseeuw 1987), or 1 if that
      silhouette is below ``separation``.
    - ``dbscan`` takes a radius, chosen likewise; the silhouette is multiplied by the
      share of models that are not noise. Below ``separation`` it takes the largest
      radius.
    - ``optics`` finds the number itself.

    Concepts whose clients started from one model lie much nearer to each other than to
    the rest. They are first found as one cluster, which is divided again if its parts
    are distinct enough. Equal models are always one cluster. No silhouette exists for
    two models: they are one cluster if they started from the same concept model.

    The unit of all thresholds is the median distance to the nearest neighbour, whatever
    the unit of ``coordinates`` (N, r). ``origin`` (N,) is the concept model from which
    each model probably started.

    Returns:
        labels (N,), numbered from 0 by first appearance, `NOISE` for a model of no
        cluster; and the silhouette, NaN where there is none.
    """
    method, at_most = params.clustering, params.concepts
    pairs = cdist(coordinates, coordinates)
    resolution = _EQUAL * pairs.max()
    one_cluster = np.zeros(len(pairs), np.int64)
    if connected_components(pairs <= resolution)[0] == 1:
        return one_cluster, np.nan
    if len(pairs) == 2:
        return _numbered(origin), np.nan
    nearest = np.where(np.eye(len(pairs), dtype=bool), np.inf, pairs).min(axis=1)
    unit = max(float(np.median(nearest)), resolution)
    points, pairs = coordinates / unit, pairs / unit
    equal = pairs <= resolution / unit
    if method == "optics":
        # Beside equal models every slope is infinitely steep, which is right.
        with np.errstate(divide="ignore"):
            labels = _numbered(OPTICS(min_samples=2).fit_predict(points))
        return labels, _silhouette(pairs, labels)

    def best(members: Labels, most: int) -> tuple[float, Labels]:
        # A division that leaves models out counts less, by their share.
        among = pairs[np.ix_(members, members)]
        kinds, _ = connected_components(equal[np.ix_(members, members)])
        most = min(most, kinds, len(members) - 1)
        divisions = (
            _dense(among, params.neighbourhood)
            if method == "dbscan"
            else _divisions(points[members], method, most, seed)
        )
        choices = [
            (_silhouette(among, parts) * float(np.mean(parts != NOISE)), parts)
            for parts in divisions
        ]
        measured = [choice for choice in choices if not np.isnan(choice[0])]
        return max(measured, key=itemgetter(0), default=(-np.inf, one_cluster[members]))

    silhouette, labels = best(np.arange(len(pairs)), at_most)
    if silhouette < params.separation:
        whole = (
            next(_dense(pairs, params.neighbourhood))
            if method == "dbscan"
            else one_cluster
        )
        return whole, _silhouette(pairs, whole)
    count = labels.max() + 1
    while count < at_most:
        inner = [
            best(np.flatnonzero(labels == number), at_most - count + 1)
            for number in range(count)
        ]
        mixed = max(range(count), key=lambda n: inner[n][0])
        if inner[mixed][0] < params.subdivision * silhouette:
            break
        parts = inner[mixed][1]
        further = np.where(parts > 0, count - 1 + parts, parts)
        labels[labels == mixed] = np.where(parts == 0, mixed, further)
        count += parts.max()
    return _numbered(labels), _silhouette(pairs, labels)


def _divisions(
    points: Matrix, method: ClusteringMethod, most: int, seed: int
) -> Iterator[Labels]:
    if method == "birch":
        # The tree of subclusters is the same for each number, so it is grown once.
        tree = Birch(threshold=0.5, n_clusters=None).fit(points)
        centres = tree.subcluster_centers_
        for count in range(2, min(most, len(centres)) + 1):
            yield AgglomerativeClustering(count).fit_predict(centres)[tree.labels_]
        return
    for count in range(2, most + 1):
        if method == "k-means":
            model = KMeans(count, n_init=10, random_state=seed % 2**32)
        else:
            model = AgglomerativeClustering(count)
        yield model.fit_predict(points)


def _dense(pairs: Matrix, largest: float) -> Iterator[Labels]:
    # In the first round concepts lie near to each other. A radius that later holds a
    # concept together would join all of them, so smaller radii are tried too.
    radius = largest
    while radius == largest or radius > _SMALLEST:
        dbscan = DBSCAN(eps=radius, min_samples=2, metric="precomputed")
        yield dbscan.fit_predict(pairs)
        radius *= _STEP


def _silhouette(pairs: Matrix, labels: Labels) -> float:
    """Average the silhouette over all but noise; NaN for fewer than two clusters."""
    kept = np.flatnonzero(labels != NOISE)
    if len(np.unique(labels[kept])) < 2:
        return np.nan
    among = pairs[np.ix_(kept, kept)]
    return float(silhouette_score(among, labels[kept], metric="precomputed"))


def _numbered(labels: Labels) -> Labels:
    """Number the clusters by first appearance; noise stays noise."""
    numbers = {NOISE: NOISE}
    for label in labels.tolist():
        numbers.setdefault(label, len(numbers) - 1)
    return np.array([numbers[label] for label in labels.tolist()], np.int64)


# ---- matching of clusters and concept models


def match(
    distances: Matrix,
    between: Callable[[int], Matrix],
    record: Matrix,
    rule: MatchingRule,
    slack: float,
) -> tuple[Labels, Matrix]:
    """Match each cluster model to the concept model it replaces; update the record.

    * ``literal``: algorithm 1. The clusters choose in turn the nearest concept model
    that is nearer than its record. Earlier choices of this round already count.
    * ``relaxed``: each cluster and each concept at most once, the nearest pair first,
    among the pairs within ``slack`` times the concept's record.
    * ``assignment``: among the same pairs the largest one-to-one choice, and of such
    choices the one of least total distance (Kuhn 1955).

    Except with the literal rule a record may rise. A longer step raises it. It is
    multiplied by ``slack`` where a concept model keeps still although it is the nearest
    of a cluster that replaces none. A distance of 0 does not change it, as no distance
    could be smaller.

    Args:
        distances: of cluster models, perhaps none, to concept models, (J, K).
        between: returns the distances (J,) of all cluster models to one of them.
        record: the distance of each concept model's last accepted update, (K,),
            infinite before the first.
        rule: one of the rules above.
        slack: how many times its record a concept model may move.

    Returns:
        the matches (J,), `NONE` where a cluster replaces nothing, or where a later
        cluster has replaced its concept again; and the new record.
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
    # A concept model that refuses its nearest cluster gets more slack, so that it does
    # not freeze for good.
    for nearest in distances[taken == NONE].argmin(axis=1):
        if nearest not in taken:
            following[nearest] *= slack
    return taken, following


def _literal(
    distances: Matrix, between: Callable[[int], Matrix], record: Matrix
) -> tuple[Labels, Matrix]:
    # The lines are those of algorithm 1.
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
    taken = np.full(len(distances), NONE)
    # Costs are shares of the largest distance, so that any choice of admissible pairs
    # costs less than one pair that is not admissible.
    largest = distances.max(where=admissible, initial=0) or 1.0
    costs = np.where(admissible, distances / largest, min(distances.shape) + 1)
    clusters, concepts = linear_sum_assignment(costs)
    chosen = admissible[clusters, concepts]
    taken[clusters[chosen]] = concepts[chosen]
    return taken
