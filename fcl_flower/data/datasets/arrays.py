"""What arrays of samples have in common: one shape, every class in both splits.

An image classification set in memory, checked once where it enters.

A set of series, such as motion over time, checked once where it enters.

A set of plain numbers, such as the columns of a table, checked where it enters.
"""

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset, Split

A = TypeVar("A", bound=np.generic)
S = TypeVar("S", bound=Dataset)


def to_float32(x: npt.NDArray[Any], x_key: str) -> npt.NDArray[np.float32]:
    """Return numbers as float32.

    Args:
        x: whole or floating point numbers of any width.
        x_key: what an error calls ``x``.

    Raises:
        ConfigError: a value is no finite number of float32.
    """
    if x.dtype.kind not in "fiu":
        raise ConfigError(f"{x_key}: got dtype {x.dtype}, expected numbers.")
    # What is too large for float32 becomes infinite here and is refused below.
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all():
        raise ConfigError(
            f"{x_key}: got values that float32 cannot hold, expected finite values."
        )
    return single


def labelled(
    x: npt.NDArray[A], y: npt.NDArray[Any], y_key: str
) -> Split[npt.NDArray[A]]:
    """Return a split made of checked samples and raw labels.

    Args:
        x: the samples.
        y: whole numbers, one for each of ``x``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: ``y`` is not as described.
    """
    if not np.issubdtype(y.dtype, np.integer):
        raise ConfigError(f"{y_key}: got dtype {y.dtype}, expected whole numbers.")
    if y.shape != (len(x),):
        raise ConfigError(
            f"{y_key}: got shape {y.shape}, expected ({len(x)},), one label a sample."
        )
    y = y.astype(np.int64)
    for array in (x, y):
        array.setflags(write=False)
    return Split(x, y)


def checked_set(
    form: type[S],
    name: str,
    where: str,
    train: Split,
    test: Split,
    class_names: tuple[str, ...],
) -> S:
    """Return a data set whose two splits fit together.

    Args:
        form: `ImageDataset`, `TimeSeriesDataset` or `TabularDataset`.
        name: as the user wrote it.
        where: what an error calls the set, such as its file.
        train: the training split.
        test: the test split.
        class_names: name of each label; empty to number them.

    Raises:
        ConfigError: the shapes differ, or a class lacks samples.
    """
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ConfigError(
            f"{where}: got training {form.kind} of shape {train.x.shape[1:]} and test "
            f"{form.kind} of shape {test.x.shape[1:]}, expected the same shape."
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
                f"{where}: {split} has no {form.kind} of label {missing}, expected "
                f"every label of 0..{number - 1}."
            )
    names = class_names or tuple(str(label) for label in range(number))
    return form(name, train, test, names)


Images: TypeAlias = npt.NDArray[np.uint8]
"""Shape (N, H, W) for grey or (N, H, W, 3) for RGB."""


class ImageDataset(Dataset[Images]):
    """Images of one shape, at least one of each class in each split."""

    kind = "images"


def image_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split[Images]:
    """Return a split made of raw arrays.

    Args:
        x: uint8, or floating point in [0, 1], which is scaled to 0..255.
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape, dtype or value is not as described.
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
    return labelled(x, y, y_key)


Series: TypeAlias = npt.NDArray[np.float32]
"""Shape (N, channels, steps), in whatever unit the file has them."""


class TimeSeriesDataset(Dataset[Series]):
    """Series of one shape, at least one of each class in each split."""

    kind = "series"


def series_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split[Series]:
    """Return a split made of raw arrays.

    Args:
        x: numbers, finite also as float32, shape (N, channels, steps).
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape or value is not as described.
    """
    if x.ndim != 3 or 0 in x.shape:
        raise ConfigError(
            f"{x_key}: got shape {x.shape}, expected (N, channels, steps), none of 0."
        )
    return labelled(to_float32(x, x_key), y, y_key)


Features: TypeAlias = npt.NDArray[np.float32]
"""Shape (N, numbers), in whatever unit the file has them."""


class TabularDataset(Dataset[Features]):
    """Samples of equally many numbers, at least one of each class in each split."""

    kind = "features"


def feature_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split[Features]:
    """Return a split made of raw arrays.

    Args:
        x: numbers, finite also as float32, shape (N, numbers).
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape or value is not as described.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ConfigError(
            f"{x_key}: got shape {x.shape}, expected (N, numbers), none of 0."
        )
    return labelled(to_float32(x, x_key), y, y_key)
