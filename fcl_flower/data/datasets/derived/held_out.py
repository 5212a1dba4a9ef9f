"""A data set whose test samples are taken from its training samples."""

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset, Split
from fcl_flower.data.partition import Indices, train_valid_split

PREFIX = "held-out:"
"""In front of a data set's name."""

FRACTION = 0.2
"""Of each class's training samples: few, to learn from nearly as many as later."""


def held_out(name: str, whole: Dataset) -> Dataset:
    """Return a data set that leaves the test samples of another alone.

    A fifth of each class's training samples are test samples, the same whatever the
    run's seed; the others are learned. So settings are chosen without a look at what a
    table shows.

    Args:
        name: what the set is called from now on.
        whole: where the training samples come from.

    Raises:
        ConfigError: a class has a single training sample, so that none can be held out.
    """
    y = whole.train.y
    counts = np.bincount(y, minlength=whole.num_classes)
    if counts.min() < 2:
        raise ConfigError(
            f"dataset: got {name!r} with one training sample of class "
            f"{whole.class_names[int(counts.argmin())]!r}, expected two or more, as "
            "one is held out"
        )
    parts = train_valid_split(y, FRACTION, np.random.default_rng(0))
    train, test = (_part(whole.train, chosen) for chosen in parts)
    return type(whole)(name, train, test, whole.class_names)


def _part(split: Split, chosen: Indices) -> Split:
    """Return some samples, read-only."""
    y = split.y[chosen]
    y.setflags(write=False)
    if isinstance(split.x, tuple):
        return Split(tuple(split.x[index] for index in chosen), y)
    x = split.x[chosen]
    x.setflags(write=False)
    return Split(x, y)
