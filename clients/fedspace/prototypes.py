"""Where the classes of a client lie among its features, and how far they spread."""

from collections.abc import Mapping

import torch
from torch import Tensor


def measured(hidden: Tensor, labels: Tensor, classes: int) -> Mapping[str, Tensor]:
    """Return the mean of each class and one radius for all.

    The radius is the root of the mean over classes of ``trace(covariance) / D``, D the
    number of features; a class with a single example has a covariance of 0.

    Args:
        hidden: features, shape (N, D).
        labels: int64, shape (N,).
        classes: of the head.

    Returns:
        ``means``, shape (classes, D), 0 where there is no example; ``held``, shape
        (classes,), 1 where there is one; ``radius``, shape (), 0 without any example.
    """
    found = torch.unique(labels)
    means = hidden.new_zeros(classes, hidden.shape[1])
    held = hidden.new_zeros(classes)
    spreads = []
    for label in found:
        of_class = hidden[labels == label]
        means[label], held[label] = of_class.mean(0), 1
        spread = (of_class - means[label]).square().sum(0).mean()
        spreads.append(spread / max(1, len(of_class) - 1))
    radius = torch.stack(spreads).mean().sqrt() if spreads else hidden.new_zeros(())
    return {"means": means, "held": held, "radius": radius}
