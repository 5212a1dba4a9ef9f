"""Dividing classes into domains by what a frozen encoder knows of public samples.

FedET (Liu et al., IJCAI 2023, section 1) "first divides the entire label space into
multiple domains", and does not say how. Nor does it have what tells them apart without
training: scores that are linear in a feature x of length 1, for each public class.
"""

from typing import NamedTuple

import numpy as np

from fcl_flower.core.errors import refuse
from fcl_flower.core.types import Array

# So that what hardly varies is not blown up (three of MiniLM's features are rounding
# errors), and few samples suffice: added to variances of features of length 1, about
# 1 / D each, and of standardised ones.
_LEAST_VARIANCE = 1e-8
_LEAST_SHARE = 1e-3


class Scores(NamedTuple):
    """How a feature x is scored for each public class: ``weights x + offsets``.

    Attributes:
        weights: float32, shape (P, D).
        offsets: float32, shape (P,).
    """

    weights: Array
    offsets: Array


def domains(features: Array, classes: Array, count: int, seed: int) -> Array:
    """Return each class's group of nearby ones, by k-means on their mean features.

    Args:
        features: shape (N, D), of any length.
        classes: int64, shape (N,), from 0, each at least once.
        count: J, at least 1.
        seed: of k-means.

    Returns:
        int64, shape (P,).

    Raises:
        ConfigError: there are fewer classes than groups.
    """
    number = int(classes.max(initial=-1)) + 1
    if number < count:
        raise refuse(
            "strategy.groups",
            count,
            f"1, or at most the {number} classes of the server's public data "
            "(data.public_fraction, data.public_dataset or, with local data, "
            "data.public_path), which route a sample to its group",
        )
    # Imported here since it takes a second, and a single group does without.
    from sklearn.cluster import KMeans

    means = nearest_mean(features, classes).weights
    found = KMeans(count, n_init=10, random_state=seed % 2**32).fit_predict(means)
    return np.asarray(found, np.int64)


def nearest_mean(features: Array, classes: Array) -> Scores:
    """Return scores that are cosines with the mean feature of each class."""
    weights = _unit(_means(_unit(features), classes)).astype(np.float32)
    return Scores(weights, np.zeros(len(weights), np.float32))


def discriminant(features: Array, classes: Array) -> Scores:
    """Return scores that are log-densities of the classes, but for what all share.

    Linear discriminant analysis: a sample belongs to the nearest class mean by the
    Mahalanobis distance. The covariance is that within classes, the same for all,
    shrunk towards its diagonal as much as Ledoit and Wolf say (J. Multivariate
    Analysis, 2004). Where no class has two samples the nearest mean decides.
    """
    # Imported here since it takes a second, and a single group does without.
    from sklearn.covariance import ledoit_wolf

    features = _unit(features)
    means = _means(features, classes)
    within = features - means[classes]
    spread = np.sqrt(np.square(within).mean(0) + _LEAST_VARIANCE)
    covariance, _ = ledoit_wolf(within / spread, assume_centered=True)
    covariance += _LEAST_SHARE * np.eye(len(spread))
    weights = np.linalg.solve(covariance, (means / spread).T).T / spread
    offsets = -0.5 * (means * weights).sum(1)
    return Scores(weights.astype(np.float32), offsets.astype(np.float32))


def _means(features: Array, classes: Array) -> Array:
    number = int(classes.max()) + 1
    return np.stack([features[classes == c].mean(0) for c in range(number)])


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), np.float64)
