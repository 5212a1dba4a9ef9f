"""Mathematics of FedET's server: targets of the distillation, and groups of classes.

Liu et al., IJCAI 2023, section 3.2, equations 6 to 8. The paper "first divides the
entire label space into multiple domains" (section 1), and does not say how. It does not
say either how a sample's domain is found without training. Here scores ``weights x +
offsets`` do it, for each class of the public samples. x is the feature of length 1 of a
frozen encoder.
"""

from collections.abc import Sequence

import numpy as np

from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Array, Arrays


def entropy_weights(entropies: Sequence[float | None]) -> Array:
    """Weigh uploads by H^k (only ratios matter); ones if all are unknown or 0."""
    weights = np.array([0.0 if h is None else h for h in entropies])
    return weights if weights.any() else np.ones(len(weights))


def distillation_targets(
    f_old: Array, f_new: Array, kept: Array, learned: Array
) -> Array:
    """Compute the targets of the entropy-aware distillation (equations 6 and 8).

    In the paper every upload learns the same new classes. Where they differ, an upload
    also has logits for a class that it has not learned. They come from the old group
    or, if that does not know the class either, from the untrained head.

    Args:
        f_old: logits of H_old, shape (N, classes).
        f_new: mean logits of the uploaded groups, with the weights H^k / H_sum, shape
            (N, classes).
        kept: bool, (classes,): classes known before, and learned by none of the
            uploads.
        learned: bool, (classes,): classes learned by some upload.

    Returns:
        shape (N, classes), 0 for a class of neither.
    """
    targets = np.zeros_like(f_old, dtype=np.float64)
    for logits, classes in ((f_old, kept), (f_new, learned)):
        if classes.any():
            part = logits[:, classes]
            targets[:, classes] = part - part.mean(1, keepdims=True)
    return targets


def wanted_distribution(
    distributions: Sequence[Array], kept: Array, new: Array
) -> Array:
    """Spread auxiliary data over the classes, summing to 1.

    The result is the mean of the clients' ``distributions``. Without any it is even
    over the group's classes. Clients have few samples of old classes, so old classes
    together get their share among the classes.
    """
    even: Array = np.where(kept | new, 1.0, 0.0) / (kept | new).sum()
    spread = np.mean(distributions, axis=0) if distributions else np.zeros(1)
    if spread.sum() <= 0:
        return even
    old = np.where(kept, even, 0.0)
    return np.asarray((1 - old.sum()) * spread / spread.sum() + old)


def auxiliary(labels: Array, distribution: Array, count: int, seed: int) -> Array:
    """Draw ``count`` public samples by class, with repetition only if necessary.

    A label is -1 for a class that no client has; ``distribution`` sums to 1. If no
    sample has a wanted class, the draw is even over all samples.
    """
    rng = np.random.default_rng(seed)
    present = np.bincount(labels[labels >= 0], minlength=len(distribution))
    shares = np.where(present > 0, distribution, 0.0)
    if shares.sum() <= 0:
        return np.asarray(rng.choice(len(labels), count, replace=count > len(labels)))
    counts = rng.multinomial(count, shares / shares.sum())
    drawn = []
    for label in np.flatnonzero(counts):
        members = rng.permutation(np.flatnonzero(labels == label))
        drawn.append(np.resize(members, counts[label]))
    return np.concatenate(drawn)


# These are added to variances of features of length 1, about 1 / D each, and to those
# of standardised ones. So features that hardly vary are not blown up (three of MiniLM's
# are rounding errors), and few samples suffice.
_LEAST_VARIANCE = 1e-8
_LEAST_SHARE = 1e-3


def domains(features: Array, classes: Array, count: int, seed: int) -> Array:
    """Cluster classes into groups of nearby ones, by k-means on their mean features."""
    number = int(classes.max(initial=-1)) + 1
    if number < count:
        raise config_error(
            "strategy.groups",
            count,
            f"1, or at most the {number} classes of the server's public data "
            "(data.public_fraction, data.public_dataset or, with local data, "
            "data.public_path), which route a sample to its group",
        )
    # The import takes a second, and a single group does not need it.
    from sklearn.cluster import KMeans

    means = nearest_mean(features, classes)["weights"]
    groups = KMeans(count, n_init=10, random_state=seed % 2**32).fit_predict(means)
    return np.asarray(groups, np.int64)


def nearest_mean(features: Array, classes: Array) -> Arrays:
    """Compute scores: the cosine with the mean feature of each class."""
    weights = _unit(_means(_unit(features), classes))
    return _scores(weights, np.zeros(len(weights)))


def discriminant(features: Array, classes: Array) -> Arrays:
    """Compute scores: the log-density of each class, up to a common constant.

    This is linear discriminant analysis: a sample belongs to the nearest class mean by
    the Mahalanobis distance. The covariance is that within classes, the same for all.
    It is shrunk towards its diagonal by the factor of Ledoit and Wolf (J. Multivariate
    Analysis, 2004). Where no class has two samples the nearest mean decides.
    """
    # The import takes a second, and a single group does not need it.
    from sklearn.covariance import ledoit_wolf

    features = _unit(features)
    means = _means(features, classes)
    within = features - means[classes]
    spread = np.sqrt(np.square(within).mean(0) + _LEAST_VARIANCE)
    covariance, _ = ledoit_wolf(within / spread, assume_centered=True)
    covariance += _LEAST_SHARE * np.eye(len(spread))
    weights = np.linalg.solve(covariance, (means / spread).T).T / spread
    return _scores(weights, -0.5 * (means * weights).sum(1))


def _scores(weights: Array, offsets: Array) -> Arrays:
    return {
        "weights": weights.astype(np.float32),
        "offsets": offsets.astype(np.float32),
    }


def _means(features: Array, classes: Array) -> Array:
    number = int(classes.max()) + 1
    return np.stack([features[classes == c].mean(0) for c in range(number)])


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), np.float64)
