"""What a client tells of a task before it begins, for Selective Inter-client Transfer.

Chaudhary et al., Findings of EMNLP 2022, section 2.3: documents as mean word vectors,
clustered. The mean of all pairwise cosines of two tasks' centres is the inner product
of the two means of their normalised centres, so that one vector says all of it.
"""

from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from fcl_flower.types import Array

Clustering = Literal["k-means", "gaussian-mixture"]


def centres(
    documents: Array, count: int, kind: Clustering, members: int, seed: int
) -> Array:
    """Return normalised cluster centres, shape (at most ``count``, D).

    No centre stands for fewer than ``members`` documents, since it would show them:
    a small task gets fewer clusters, and the documents of a cluster that stays too
    small go to the nearest one that does not. Without enough documents for a single
    cluster there is no centre.

    Args:
        documents: shape (N, D).
        count: Q, at least 1.
        kind: how documents are clustered.
        members: at least 1.
        seed: of the clustering.
    """
    different = len(np.unique(documents, axis=0))
    count = min(count, len(documents) // members, different)
    if not count:
        return np.zeros((0, documents.shape[1]), np.float32)
    labels = _labels(documents.astype(np.float64), count, kind, seed)
    large = np.flatnonzero(np.bincount(labels, minlength=count) >= members)
    if not len(large):
        labels, large = np.zeros(len(documents), np.int64), np.zeros(1, np.int64)
    found = np.stack([documents[labels == n].mean(0) for n in large])
    small = ~np.isin(labels, large)
    if small.any():
        labels[small] = large[cdist(documents[small], found).argmin(1)]
    means = np.stack([documents[labels == n].mean(0) for n in large])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return (means / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _labels(documents: Array, count: int, kind: Clustering, seed: int) -> Array:
    """Return the cluster of each document."""
    # Imported here since it takes a second, and most learners do without.
    from sklearn.cluster import KMeans
    from sklearn.mixture import GaussianMixture

    if kind == "k-means":
        found = KMeans(count, n_init=1, random_state=seed % 2**32).fit_predict(
            documents
        )
    else:
        found = GaussianMixture(
            count, covariance_type="diag", random_state=seed % 2**32
        ).fit_predict(documents)
    return np.asarray(found)
