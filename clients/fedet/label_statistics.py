"""Label statistics that a client sends to the server, exact or with noise.

Liu et al., IJCAI 2023, section 3.2: the label distribution P_y and the information
entropy H of the new classes. Noise here blurs a number; it is no differential privacy.
"""

import numpy as np

from fcl_flower.core.types import Array, Arrays
from strategies.fedet import LabelStatistics


def class_frequencies(labels: Array, classes: int) -> Array:
    """Return the share of each class, float64, shape (classes,); zeros of no labels."""
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1.0))


def information_entropy(distribution: Array) -> float:
    """Return ``-sum p ln p``, in nats; 0 for a single class."""
    present = distribution[distribution > 0]
    return float(max(0.0, -(present * np.log(present)).sum()))


def label_statistics(
    trained: Array,
    new: Array,
    classes: int,
    *,
    distribution: LabelStatistics,
    entropy: LabelStatistics,
    noise: float,
    seed: int,
) -> Arrays:
    """Return what travels beside a group of classes.

    Args:
        trained: labels of the samples that the group was trained and distilled on.
        new: labels of those of the new classes.
        classes: of the head.
        distribution: how exactly the shares of ``trained`` are sent.
        entropy: likewise for the entropy of ``new``.
        noise: standard deviation of the Gaussian noise on each share, which is then cut
            at 0 and brought to the sum 1, and on the entropy, cut at 0 as well.
        seed: of the noise.

    Returns:
        ``classes`` (int64, the new ones, ascending) and, if they are sent,
        ``distribution`` (float32, shape (classes,)) and ``entropy`` (float32, ()).
    """
    rng = np.random.default_rng(seed)
    statistics = {"classes": np.unique(new).astype(np.int64)}
    if distribution != "withheld":
        known = class_frequencies(trained, classes)
        if distribution == "noised":
            known = np.maximum(known + rng.normal(0, noise, classes), 0)
            known = (
                known / known.sum() if known.any() else np.full(classes, 1 / classes)
            )
        statistics["distribution"] = known.astype(np.float32)
    if entropy != "withheld":
        found = information_entropy(class_frequencies(new, classes))
        if entropy == "noised":
            found = max(0.0, found + float(rng.normal(0, noise)))
        statistics["entropy"] = np.asarray(found, np.float32)
    return statistics
