"""Which clients' models belong together, and how many groups there are.

The five algorithms of Jiang, Sen and Borcea 2025, section V, on coordinates in which
models have their true Euclidean distances (see `gram_matrix`).
"""

from collections.abc import Iterator
from operator import itemgetter

import numpy as np
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, OPTICS, AgglomerativeClustering, Birch, KMeans
from sklearn.metrics import silhouette_score

from strategies.concept_matching import ClusteringMethod
from strategies.concept_matching.gram_matrix import Labels, Matrix

NOISE = -1

_EQUAL = 1e-6
"""Coordinates from a Gram matrix tell no smaller share of the largest distance."""

_STEP = 0.97
_SMALLEST = 1.1
"""DBSCAN's radii: the ratio of two, and what all but the largest are above."""


def cluster(
    coordinates: Matrix,
    origin: Labels,
    method: ClusteringMethod,
    *,
    at_most: int,
    separation: float,
    subdivision: float,
    neighbourhood: float,
    seed: int,
) -> tuple[Labels, float]:
    """Return the cluster of each model, and the mean silhouette of the choice.

    ``k-means``, ``agglomerative`` (Ward) and ``birch`` are given a number of clusters:
    the one with the largest silhouette (Rousseeuw 1987) from 2 up, or 1 if that is
    below ``separation``. ``dbscan`` is given a radius: likewise, where the silhouette
    counts by the share of models that are not noise; or the largest radius. Concepts
    whose clients started from one model lie much nearer to each other than to the rest,
    so that this finds them as one cluster: it is divided again if its parts are
    distinct enough. ``optics`` finds the number itself. Equal models are always one
    cluster. No silhouette exists for two models: they are one cluster if they started
    from the same concept model.

    Args:
        coordinates: shape (N, r), in any unit: the median distance to the nearest
            neighbour is the unit of all thresholds.
        origin: shape (N,), the concept model that each probably started from.
        method: the algorithm.
        at_most: clusters, for the methods that are given a number; and DBSCAN divides
            no cluster again beyond it; at least 1.
        separation: in [-1, 1].
        subdivision: least silhouette of the parts of a cluster, among themselves, in
            units of that of the clusters; at least 0.
        neighbourhood: DBSCAN's largest radius, in units of the median distance to the
            nearest neighbour; above 0. Smaller ones are tried in steps of 3 %, as long
            as they are above 1.1.
        seed: of k-means.

    Returns:
        Labels, shape (N,), numbered from 0 by first appearance, `NOISE` for a model
        that belongs to none; and the silhouette in [-1, 1], NaN where there is none.
    """
    pairs = cdist(coordinates, coordinates)
    resolution = _EQUAL * pairs.max()
    one = np.zeros(len(pairs), np.int64)
    if connected_components(pairs <= resolution)[0] == 1:
        return one, np.nan
    if len(pairs) == 2:
        return _numbered(origin), np.nan
    nearest = np.where(np.eye(len(pairs), dtype=bool), np.inf, pairs).min(axis=1)
    unit = max(float(np.median(nearest)), resolution)
    points, pairs = coordinates / unit, pairs / unit
    equal = pairs <= resolution / unit
    if method == "optics":
        labels = _numbered(_valleys(points))
        return labels, _silhouette(pairs, labels)

    def best(members: Labels, most: int) -> tuple[float, Labels]:
        """Return the division with the largest silhouette; -inf where none is.

        What leaves models out counts for less, by the share of them.
        """
        among = pairs[np.ix_(members, members)]
        kinds, _ = connected_components(equal[np.ix_(members, members)])
        most = min(most, kinds, len(members) - 1)
        divisions = (
            _dense(among, neighbourhood)
            if method == "dbscan"
            else _divisions(points[members], method, most, seed)
        )
        choices = [
            (_silhouette(among, parts) * float(np.mean(parts != NOISE)), parts)
            for parts in divisions
        ]
        known = [choice for choice in choices if not np.isnan(choice[0])]
        return max(known, key=itemgetter(0), default=(-np.inf, one[members]))

    silhouette, labels = best(np.arange(len(pairs)), at_most)
    if silhouette < separation:
        whole = next(_dense(pairs, neighbourhood)) if method == "dbscan" else one
        return whole, _silhouette(pairs, whole)
    count = labels.max() + 1
    while count < at_most:
        inner = [
            best(np.flatnonzero(labels == number), at_most - count + 1)
            for number in range(count)
        ]
        mixed = max(range(count), key=lambda n: inner[n][0])
        if inner[mixed][0] < subdivision * silhouette:
            break
        parts = inner[mixed][1]
        further = np.where(parts > 0, count - 1 + parts, parts)
        labels[labels == mixed] = np.where(parts == 0, mixed, further)
        count += parts.max()
    return _numbered(labels), _silhouette(pairs, labels)


def _divisions(
    points: Matrix, method: ClusteringMethod, most: int, seed: int
) -> Iterator[Labels]:
    """Yield the labels for each number of clusters from 2 to ``most``."""
    if method == "birch":
        # The tree of subclusters is the same for each number: grow it once.
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
    """Yield the labels of DBSCAN for each radius, from the largest down.

    In the first round concepts lie so near to each other that a radius which later
    holds a concept together joins them all; and what it joins, it joins again.
    """
    radius = largest
    while radius == largest or radius > _SMALLEST:
        dbscan = DBSCAN(eps=radius, min_samples=2, metric="precomputed")
        yield dbscan.fit_predict(pairs)
        radius *= _STEP


def _valleys(points: Matrix) -> Labels:
    """Return the labels of OPTICS."""
    # Beside equal models every slope is infinitely steep, as it should be.
    with np.errstate(divide="ignore"):
        found: Labels = OPTICS(min_samples=2).fit_predict(points)
    return found


def _silhouette(pairs: Matrix, labels: Labels) -> float:
    """Return the mean silhouette without noise; NaN for fewer than two clusters."""
    kept = np.flatnonzero(labels != NOISE)
    if len(np.unique(labels[kept])) < 2:
        return np.nan
    among = pairs[np.ix_(kept, kept)]
    return float(silhouette_score(among, labels[kept], metric="precomputed"))


def _numbered(labels: Labels) -> Labels:
    """Return the same division, numbered by first appearance; noise stays noise."""
    numbers = {NOISE: NOISE}
    for label in labels.tolist():
        numbers.setdefault(label, len(numbers) - 1)
    return np.array([numbers[label] for label in labels.tolist()], np.int64)
