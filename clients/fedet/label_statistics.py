"""Label statistics that a client sends to the server, exact or with noise.

Liu et al., IJCAI 2023, section 3.2: the label distribution P_y and the information
entropy H of the new classes. With noise on both, `label_loss` says how well a single
label is hidden in these numbers; the set of classes and the trained tensors, which
travel beside them, hide nothing.
"""

import math

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
    rng: np.random.Generator,
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
        rng: of the noise; secret, as who can repeat it can take it off again.

    Returns:
        ``classes`` (int64, the new ones, ascending) and, if they are sent,
        ``distribution`` (float32, shape (classes,)) and ``entropy`` (float32, ()).
    """
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


def label_loss(
    trained: int,
    new: int,
    *,
    distribution: LabelStatistics,
    entropy: LabelStatistics,
    noise: float,
) -> float:
    """Return mu^2 of a group's statistics, for one label (`privacy.accounting`).

    Neighbours differ in the label of one sample, which is among the new ones and may be
    once more in the buffer; numbers of samples are taken as known. The shares are then
    2 sqrt(2) / n apart at most, and the entropy 2 max(1, ln n) / n: a count that goes
    from 1 to 0 changes -p ln p by ln n / n, and no other step by more, or by 1 / n.
    What is exact is no part of it.

    Args:
        trained: n of the shares, at least 1.
        new: n of the entropy, at least 1.
        distribution: how the shares are sent.
        entropy: how the entropy is sent.
        noise: standard deviation, above 0 where something is noised.
    """
    sensitivities = [
        *[2 * math.sqrt(2) / trained] * (distribution == "noised"),
        *[2 * max(1.0, math.log(new)) / new] * (entropy == "noised"),
    ]
    return sum((sensitivity / noise) ** 2 for sensitivity in sensitivities)
