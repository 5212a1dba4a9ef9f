"""What a client tells of a task before it begins, for Selective Inter-client Transfer.

Chaudhary et al., Findings of EMNLP 2022, section 2.3: documents as mean word vectors,
clustered. The mean of all pairwise cosines of two tasks' centres is the inner product
of the two means of their normalised centres, so that one vector says all of it.
"""

import warnings

import numpy as np

from fcl_flower.core.types import Array
from strategies.fedweit import Clustering


def centres(
    documents: Array, count: int, kind: Clustering, members: int, seed: int
) -> Array:
    """Return normalised cluster centres, shape (at most ``count``, D).

    No centre stands for fewer than ``members`` documents, since it would show them:
    a small task gets fewer clusters, and the documents of a cluster that stays too
    small go to the nearest one that does not. Without enough documents for a single
    cluster there is no centre. Equal documents count once, since many copies of one
    would show it too.

    Args:
        documents: shape (N, D).
        count: Q, at least 1.
        kind: how documents are clustered.
        members: at least 1.
        seed: of the clustering.
    """
    documents = np.unique(documents, axis=0)
    count = min(count, len(documents) // members)
    if not count:
        return np.zeros((0, documents.shape[1]), np.float32)
    labels = cluster_labels(documents.astype(np.float64), count, kind, seed)
    # At least one: count * members documents cannot all lie in smaller clusters.
    large = np.flatnonzero(np.bincount(labels) >= members)
    found = np.stack([documents[labels == n].mean(0) for n in large])
    small = ~np.isin(labels, large)
    if small.any():
        from scipy.spatial.distance import cdist  # as below

        labels[small] = large[cdist(documents[small], found).argmin(1)]
    means = np.stack([documents[labels == n].mean(0) for n in large])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return (means / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def cluster_labels(documents: Array, count: int, kind: Clustering, seed: int) -> Array:
    """Return the cluster of each document, shape (N,); at least one of them."""
    if count == 1:
        # Nothing to find, and scikit-learn refuses a mixture over one document.
        return np.zeros(len(documents), np.int64)
    # Imported here since it takes a second, and most learners do without.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # NumPy's older generator takes 32 bits.
    seed %= 2**32
    model = (
        KMeans(count, n_init=1, random_state=seed)
        if kind == "k-means"
        else GaussianMixture(count, covariance_type="diag", random_state=seed)
    )
    with warnings.catch_warnings():
        # Clusters that have not settled, or are fewer, are still clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit_predict(documents))
