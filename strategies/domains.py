"""Dividing classes into domains by what a frozen encoder knows of public samples.

FedET (Liu et al., IJCAI 2023, section 1) "first divides the entire label space into
multiple domains", and does not say how.
"""

from typing import NamedTuple

import numpy as np

from fcl_flower.errors import ConfigError
from fcl_flower.types import Array


class Domains(NamedTuple):
    """Groups of classes.

    Attributes:
        prototypes: float32, shape (P, D), the mean feature of each public class.
        groups: int64, shape (P,), the group of each.
    """

    prototypes: Array
    groups: Array


def domains(features: Array, classes: Array, count: int, seed: int) -> Domains:
    """Return public classes in groups of nearby ones: k-means on their mean features.

    Features and means are brought to length 1, so that nearness is the cosine.

    Args:
        features: shape (N, D).
        classes: int64, shape (N,), from 0, each at least once.
        count: J, at least 1.
        seed: of k-means.

    Raises:
        ConfigError: there are fewer classes than groups.
    """
    number = int(classes.max(initial=-1)) + 1
    if number < count:
        raise ConfigError(
            f"set groups: {count} is refused: expected at most the {number} classes of "
            "the server's public data (public-fraction, public-dataset), by which a "
            "sample is sent to a group; or 1"
        )
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(lengths, 1e-12)
    means = np.stack([features[classes == c].mean(0) for c in range(number)])
    means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    # Imported here since it takes a second, and a single group does without.
    from sklearn.cluster import KMeans

    found = KMeans(count, n_init=10, random_state=seed % 2**32).fit_predict(means)
    return Domains(means.astype(np.float32), found.astype(np.int64))
