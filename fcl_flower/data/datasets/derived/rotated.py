"""A data set whose images are turned: other inputs, the same labels."""

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import ImageDataset, Images
from fcl_flower.data.datasets.base import Dataset, Split


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
