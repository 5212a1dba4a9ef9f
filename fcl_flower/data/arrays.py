"""Data sets of arrays: images, time series and tables, checked where they enter."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.tables import different, read_arrays

AnyArray: TypeAlias = npt.NDArray[Any]
Images: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
"""An array of grey (N, H, W) or RGB (N, H, W, 3) images, uint8 or float32 in [0, 1]."""
Floats: TypeAlias = npt.NDArray[np.float32]
"""An array of time series (N, channels, steps) or rows (N, columns), in any unit."""

D = TypeVar("D", bound=Dataset)

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""The names of the four arrays that make a data set."""


class ImageDataset(Dataset[Images]):
    """A data set of images of one shape, with each class in each split."""

    modality = "images"


class TimeSeriesDataset(Dataset[Floats]):
    """A data set of time series of one shape, with each class in each split."""

    modality = "time-series"


class TabularDataset(Dataset[Floats]):
    """A data set of rows with equally many columns, with each class in each split."""

    modality = "tabular"


def from_arrays(
    x_train: npt.ArrayLike,
    y_train: npt.ArrayLike,
    x_test: npt.ArrayLike,
    y_test: npt.ArrayLike,
    class_names: tuple[str, ...] = (),
    name: str = "arrays",
) -> Dataset:
    """Make a data set of copies of the arrays.

    Arrays of two axes are a table. Arrays of three axes and floating point are time
    series if some value lies outside [0, 1]. All other arrays are images.

    Args:
        x_train: training samples: images (N, H, W) or (N, H, W, 3), of 8 or 16 bits or
            in [0, 1]; time series (N, channels, steps); or a table (N, columns).
        y_train: training labels, whole numbers from 0, shape (N,).
        x_test: test samples, of the same shape except for N.
        y_test: test labels.
        class_names: name of each label; empty names the labels by their numbers.
        name: name of the data set.
    """
    inputs = (x_train, y_train, x_test, y_test)
    arrays = dict(zip(ARRAYS, map(np.array, inputs), strict=True))
    return checked_dataset(name, name, arrays, different(class_names, name))


def checked_dataset(
    name: str, where: str, arrays: Mapping[str, AnyArray], class_names: tuple[str, ...]
) -> Dataset:
    """Make a data set of arrays, as `from_arrays` does, without copies.

    The arrays become read-only. ``where`` names the data set in errors, such as by its
    file.
    """
    form = _form_of(arrays["x_train"], arrays["x_test"])
    train, test = (
        array_split(form, arrays[x], arrays[y], f"{where}: {x}", f"{where}: {y}")
        for x, y in (ARRAYS[:2], ARRAYS[2:])
    )
    return array_dataset(form, name, where, train, test, class_names)


def array_split(
    form: type[Dataset], x: AnyArray, y: AnyArray, x_key: str, y_key: str
) -> Split[AnyArray]:
    """Make a split of raw arrays, which are checked and become read-only.

    Args:
        form: kind of the data set.
        x: samples of the shape and range that ``form`` takes.
        y: a whole number for each sample.
        x_key: name of ``x`` in errors, such as ``data/mine.npz: x_train``.
        y_key: name of ``y`` in errors.
    """
    x = array_samples(form, x, x_key)
    if not np.issubdtype(y.dtype, np.integer):
        raise _wrong(y_key, f"dtype {y.dtype}", "whole numbers")
    if y.shape != (len(x),):
        raise _wrong(y_key, f"shape {y.shape}", f"({len(x)},), one label a sample")
    y = y.astype(np.int64)
    for array in (x, y):
        array.setflags(write=False)
    return Split(x, y)


def array_samples(form: type[Dataset], x: AnyArray, key: str) -> AnyArray:
    """Check and convert raw samples without labels; errors call them ``key``."""
    shape, fits, convert = _CHECKS[form]
    if not fits(x.shape) or 0 in x.shape:
        raise _wrong(key, f"shape {x.shape}", f"{shape}, none of them 0")
    return convert(x, key)


def array_dataset(
    form: type[D],
    name: str,
    where: str,
    train: Split,
    test: Split,
    class_names: tuple[str, ...],
) -> D:
    """Make a data set of two splits that fit together."""
    shape, tested = train.x.shape[1:], test.x.shape[1:]
    if shape != tested:
        raise _wrong(where, f"test samples of shape {tested}", f"{shape} as in train")
    number = len(class_names) or int(train.y.max()) + 1
    for key, y in (("y_train", train.y), ("y_test", test.y)):
        # A wrong label may be huge, so no array here has a place for each label.
        present = np.unique(y)
        if present[0] < 0 or present[-1] >= number:
            labels = f"labels {present[0]}..{present[-1]}"
            raise _wrong(f"{where}: {key}", labels, f"0..{number - 1}")
        if len(present) < number:
            gaps = np.flatnonzero(present != np.arange(len(present)))
            missing = int(gaps[0]) if len(gaps) else len(present)
            expected = f"every label of 0..{number - 1}"
            raise _wrong(f"{where}: {key}", f"no sample of label {missing}", expected)
    names = class_names or tuple(str(label) for label in range(number))
    return form(name, train, test, names)


def _form_of(*x: AnyArray) -> type[Dataset]:
    if all(samples.ndim == 2 for samples in x):
        return TabularDataset
    series = all(s.ndim == 3 and np.issubdtype(s.dtype, np.floating) for s in x)
    if series and any(np.any((s < 0) | (s > 1)) for s in x):
        return TimeSeriesDataset
    return ImageDataset


_WHITE = {"uint16": 65535, "int16": 32767}
"""The value of white in images of 16 bits, by dtype."""


def to_pixels(x: AnyArray, key: str) -> Images:
    """Return images of uint8 as they are; convert images of more bits to [0, 1].

    Black is 0. White is 255 in uint8, 65535 in uint16, 32767 in int16, and 1 in
    floating point. Errors call the images ``key``.
    """
    if x.dtype == np.uint8:
        return x
    white = _WHITE.get(x.dtype.name, 1)
    if white == 1 and not np.issubdtype(x.dtype, np.floating):
        expected = "uint8, uint16, int16 or floating point in [0, 1]"
        raise _wrong(key, f"dtype {x.dtype}", expected)
    # Written so that NaN fails the comparison, too.
    if not (x.min() >= 0 and x.max() <= white):
        values = f"values from {x.min():g} to {x.max():g}"
        expected = "floating point values in [0, 1]"
        if white > 1:
            expected = f"0 to {white}: scale them to [0, 1] alike at all clients"
        raise _wrong(key, values, expected)
    return x.astype(np.float32) / np.float32(white)


def _to_float32(x: AnyArray, key: str) -> Floats:
    if x.dtype.kind not in "fiu":
        raise _wrong(key, f"dtype {x.dtype}", "numbers")
    # A value too large for float32 becomes infinite here and is refused below.
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all():
        raise _wrong(key, "values that float32 cannot hold", "finite values")
    if equal := first_equal(x, single):
        column, one, other = equal
        raise _wrong(key, f"{one} and {other} in column {column}", DIGITS)
    return single


DIGITS = (
    "numbers of at most 7 digits, which float32 tells apart: subtract a base, such as "
    "the smallest number, or leave the column out"
)
"""The expectation of whole numbers, for an error."""


def first_equal(x: AnyArray, single: Floats) -> tuple[int, int, int] | None:
    """Find a column with two whole numbers that are one number in float32.

    Args:
        x: numbers before the conversion, shape (N, columns) or (N, channels, steps).
        single: the same as float32.

    Returns:
        the column or channel, and the two numbers; None if there are none.
    """
    large = (np.abs(single) >= 2**24) & (np.abs(single) < 2**63)
    for column in np.flatnonzero(
        np.moveaxis(large, 1, 0).reshape(x.shape[1], -1).any(1)
    ):
        values = np.unique(x[:, column][large[:, column]])
        values = values[values % 1 == 0]  # the last digits of others are no names
        if len(same := np.flatnonzero(np.diff(values.astype(np.float32)) == 0)):
            return int(column), int(values[same[0]]), int(values[same[0] + 1])
    return None


def _wrong(key: str, got: str, expected: str) -> ConfigError:
    return ConfigError(f"{key}: got {got}, expected {expected}")


_Fits: TypeAlias = Callable[[tuple[int, ...]], bool]
_Convert: TypeAlias = Callable[[AnyArray, str], AnyArray]


_CHECKS: Mapping[type[Dataset], tuple[str, _Fits, _Convert]] = {
    ImageDataset: (
        "(N, H, W) or (N, H, W, 3)",
        lambda shape: len(shape) == 3 or (len(shape) == 4 and shape[3] == 3),
        to_pixels,
    ),
    TimeSeriesDataset: (
        "(N, channels, steps)",
        lambda shape: len(shape) == 3,
        _to_float32,
    ),
    TabularDataset: ("(N, columns)", lambda shape: len(shape) == 2, _to_float32),
}
"""The shape in words, the check of a shape, and the conversion, by form."""


def load_npz(name: str, path: Path) -> Dataset:
    """Read a data set from an ``.npz`` file of `ARRAYS` and maybe ``class_names``."""
    arrays, names = read_arrays(path, ARRAYS)
    return checked_dataset(name, str(path), arrays, names)
