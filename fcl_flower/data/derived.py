"""A data set whose test samples are taken from its training samples."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset, Images
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.partition import Indices, train_valid_split
from fcl_flower.data.texts import TextDataset

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


def relabelled(name: str, places: int, whole: Dataset) -> Dataset:
    """Return a data set whose classes have the names of others.

    Samples of the first class are called as those of the class ``places`` behind it
    were, and so on in a circle. Where classes of one name are one class
    (``scenario.merge_labels``), what is right for the one set is wrong for the other:
    concept shift by permuted labels, as in clustered federated learning (Sattler et
    al., TNNLS 2020).

    Args:
        name: what the set is called from now on.
        places: at least 1, and below the number of classes.
        whole: where the samples come from.

    Raises:
        ConfigError: another number of places.
    """
    if not 0 < places < whole.num_classes:
        raise ConfigError(
            f"dataset: got {name!r}, expected relabelled-N with N from 1 to "
            f"{whole.num_classes - 1}, below the number of classes"
        )
    names = whole.class_names
    moved = (*names[places:], *names[:places])
    return type(whole)(name, whole.train, whole.test, moved)


def rotated(name: str, degrees: int, whole: Dataset) -> ImageDataset:
    """Return the images of a data set, turned anticlockwise.

    Clusters of clients differ so in IFCA's experiments (Ghosh et al., NeurIPS 2020),
    by 0, 90, 180 and 270 degrees.

    Args:
        name: what the set is called from now on.
        degrees: 90, 180 or 270.
        whole: where the images come from.

    Raises:
        ConfigError: these are no images, or another angle.
    """
    if not isinstance(whole, ImageDataset):
        expected = f"images, not {whole.modality}"
        raise ConfigError(f"dataset: got {name!r}, expected {expected}")
    if degrees not in (90, 180, 270):
        raise ConfigError(
            f"dataset: got {name!r}, expected rotated-90, rotated-180 or rotated-270"
        )
    train, test = (_turned(split, degrees // 90) for split in (whole.train, whole.test))
    return ImageDataset(name, train, test, whole.class_names)


def _turned(split: Split[Images], turns: int) -> Split[Images]:
    x = np.ascontiguousarray(np.rot90(split.x, turns, axes=(1, 2)))
    x.setflags(write=False)
    return Split(x, split.y)


def united(name: str, members: Sequence[Dataset]) -> Dataset:
    """Return one data set with the classes and the samples of all.

    The labels of a member follow those of the member before. A class is called by
    member and class, such as ``mnist:0``. Images get the largest height and width,
    by bilinear interpolation, and are RGB where one member is.

    Args:
        name: what the set is called from now on.
        members: at least one, all images, all series of one shape, or all texts.

    Raises:
        ConfigError: a member is there twice, or they are not of one modality or shape.
    """
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        raise ConfigError(f"dataset: got {name!r}, expected different names")
    _refuse_unlike(name, {member.name: member.modality for member in members})
    first = members[0]
    if not isinstance(first, TextDataset | ImageDataset):
        shapes = {m.name: f"shape {m.train.x.shape[1:]}" for m in members}
        _refuse_unlike(name, shapes)
    return type(first)(
        name,
        _joined([member.train for member in members], members),
        _joined([member.test for member in members], members),
        tuple(f"{m.name}:{label}" for m in members for label in m.class_names),
    )


def _refuse_unlike(name: str, found: dict[str, str]) -> None:
    """Refuse members of which not all have the same to say."""
    if len(set(found.values())) > 1:
        said = " and ".join(f"{what} in {member!r}" for member, what in found.items())
        raise ConfigError(
            f"dataset: got {name!r} with {said}, expected the same in all of them"
        )


def _joined(splits: Sequence[Split], members: Sequence[Dataset]) -> Split:
    """Return the samples of all splits, each labelled behind the one before."""
    ends = np.cumsum([member.num_classes for member in members])
    starts = [0, *ends[:-1]]
    y = np.concatenate([s.y + start for s, start in zip(splits, starts, strict=True)])
    y.setflags(write=False)
    parts = [split.x for split in splits]
    if isinstance(members[0], TextDataset):
        return Split(tuple(chain.from_iterable(parts)), y)
    if isinstance(members[0], ImageDataset):
        parts = _alike(parts)
    x = np.concatenate(parts)
    x.setflags(write=False)
    return Split(x, y)


def _alike(parts: Sequence[Images]) -> list[Images]:
    """Return images of the largest size, and RGB where some are."""
    # Imported here since it loads torch, and most data sets are one.
    from fcl_flower.data.images import resized

    height, width = (max(x.shape[axis] for x in parts) for axis in (1, 2))
    rgb = any(x.ndim == 4 for x in parts)
    same = [resized(x, height, width) for x in parts]
    return [np.repeat(x[..., None], 3, -1) if rgb and x.ndim == 3 else x for x in same]
