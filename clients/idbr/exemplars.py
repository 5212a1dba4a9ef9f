"""Which samples of a task IDBR keeps: the nearest to the centres of k-means.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, section 3.4.
"""

import numpy as np

from fcl_flower.core.types import Array


def nearest_to_centres(features: Array, count: int, seed: int) -> Array:
    """Return the place of the sample nearest to each cluster's centre.

    Args:
        features: shape (N, d).
        count: of clusters, at least 1; at most N count.
        seed: of k-means.

    Returns:
        int64, ascending, one for each cluster.
    """
    # Imported here since it takes a second.
    from sklearn.cluster import KMeans

    points = np.asarray(features, np.float64)
    # There are no more clusters than different points.
    count = min(count, len(np.unique(points, axis=0)))
    fitted = KMeans(count, n_init=10, random_state=seed % 2**32).fit(points)
    places = []
    for cluster, centre in enumerate(fitted.cluster_centers_):
        members = np.flatnonzero(fitted.labels_ == cluster)
        distances = np.square(points[members] - centre).sum(1)
        places.append(members[distances.argmin()])
    return np.sort(np.array(places, np.int64))
