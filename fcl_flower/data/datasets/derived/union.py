"""Several data sets as one: their classes side by side."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import ImageDataset, Images
from fcl_flower.data.datasets.base import Dataset, Split
from fcl_flower.data.datasets.text import TextDataset


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
    from fcl_flower.data.datasets.images import resized

    height, width = (max(x.shape[axis] for x in parts) for axis in (1, 2))
    rgb = any(x.ndim == 4 for x in parts)
    same = [resized(x, height, width) for x in parts]
    return [np.repeat(x[..., None], 3, -1) if rgb and x.ndim == 3 else x for x in same]
