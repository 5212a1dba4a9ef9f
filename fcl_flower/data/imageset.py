"""An image classification set in memory, checked once where it enters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Images and labels; read-only.

    Attributes:
        x: uint8, shape (N, H, W) for grey or (N, H, W, 3) for RGB.
        y: int64, shape (N,), labels from 0.
    """

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """A data set with its own split into training and test images.

    Every class has at least one training and one test image, and all images have
    the same shape.

    Attributes:
        name: as the user wrote it.
        train: the training split.
        test: the test split.
        class_names: name of each label.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)


def checked_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split:
    """Return a split made of raw arrays.

    Args:
        x: uint8, or floating point in [0, 1], which is scaled to 0..255.
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape, dtype or value is not as described for `Split`.
    """
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or 0 in x.shape:
        raise ConfigError(
            f"{x_key}: got shape {x.shape}, expected (N, H, W) or (N, H, W, 3)."
        )
    if np.issubdtype(x.dtype, np.floating):
        # Written so that NaN fails the comparison too.
        if not (x.min() >= 0 and x.max() <= 1):
            raise ConfigError(
                f"{x_key}: got values from {x.min():g} to {x.max():g}, "
                "expected floating point values in [0, 1]."
            )
        x = np.rint(x * 255.0).astype(np.uint8)
    if x.dtype != np.uint8:
        raise ConfigError(
            f"{x_key}: got dtype {x.dtype}, expected uint8 or floating point in [0, 1]."
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise ConfigError(f"{y_key}: got dtype {y.dtype}, expected whole numbers.")
    if y.shape != (len(x),):
        raise ConfigError(
            f"{y_key}: got shape {y.shape}, expected ({len(x)},), one label an image."
        )
    y = y.astype(np.int64)
    for array in (x, y):
        array.setflags(write=False)
    return Split(x, y)


def checked_set(
    name: str, where: str, train: Split, test: Split, class_names: tuple[str, ...]
) -> ImageSet:
    """Return a data set whose two splits fit together.

    Args:
        name: as the user wrote it.
        where: what an error calls the set, such as its file.
        train: the training split.
        test: the test split.
        class_names: name of each label; empty to number them.

    Raises:
        ConfigError: the image shapes differ, or a class lacks images.
    """
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ConfigError(
            f"{where}: got training images of shape {train.x.shape[1:]} and test "
            f"images of shape {test.x.shape[1:]}, expected the same shape."
        )
    number = len(class_names) or int(train.y.max()) + 1
    for split, y in (("y_train", train.y), ("y_test", test.y)):
        # Nothing here may allocate as much as the largest label says.
        present = np.unique(y)
        if present[0] < 0 or present[-1] >= number:
            raise ConfigError(
                f"{where}: {split} has labels {present[0]}..{present[-1]}, expected "
                f"0..{number - 1}."
            )
        if len(present) < number:
            gaps = np.flatnonzero(present != np.arange(len(present)))
            missing = gaps[0] if len(gaps) else len(present)
            raise ConfigError(
                f"{where}: {split} has no image of label {missing}, expected every "
                f"label of 0..{number - 1}."
            )
    names = class_names or tuple(str(label) for label in range(number))
    return ImageSet(name, train, test, names)
