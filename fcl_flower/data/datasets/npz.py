"""Images, series or plain numbers in one file: ``NAME.npz``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
    checked_set,
    feature_split,
    image_split,
    series_split,
)
from fcl_flower.data.datasets.base import Dataset, Split

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""What a file has to hold."""

SPLITS: Mapping[type[Dataset], Callable[..., Split]] = MappingProxyType(
    {
        ImageDataset: image_split,
        TimeSeriesDataset: series_split,
        TabularDataset: feature_split,
    }
)
"""What makes a split of raw arrays, by the kind of data set."""


def load_npz(name: str, path: Path) -> Dataset:
    """Return the data set in ``path``, every array checked.

    Args:
        name: what the set is called from now on.
        path: holds `ARRAYS`, and may hold ``class_names``.

    Raises:
        ConfigError: the file cannot be read, lacks an array, or an array is neither
            as `image_split`, `series_split` nor `feature_split` wants it.
    """
    arrays, names = read_arrays(path, ARRAYS)
    form = _form(arrays["x_train"], arrays["x_test"])
    train, test = (
        SPLITS[form](arrays[x], arrays[y], f"{path}: {x}", f"{path}: {y}")
        for x, y in (("x_train", "y_train"), ("x_test", "y_test"))
    )
    return checked_set(form, name, str(path), train, test, names)


def _form(*x: npt.NDArray[Any]) -> type[Dataset]:
    """Return what the samples of both splits are."""
    if all(samples.ndim == 2 for samples in x):
        return TabularDataset
    return TimeSeriesDataset if _are_series(*x) else ImageDataset


def _are_series(*arrays: npt.NDArray[Any]) -> bool:
    """Return whether the samples are series: grey images would lie in [0, 1]."""
    return all(
        x.ndim == 3 and np.issubdtype(x.dtype, np.floating) for x in arrays
    ) and any(np.any((x < 0) | (x > 1)) for x in arrays)


def read_arrays(
    path: Path, keys: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], tuple[str, ...]]:
    """Return arrays of a file that may be broken, without unpickling any.

    Args:
        path: of the file.
        keys: the arrays that it has to hold.

    Returns:
        the arrays by key, and the ``class_names``; empty where it has none.

    Raises:
        ConfigError: the file cannot be read, lacks an array, or its ``class_names``
            are no texts.
    """
    arrays = _read(path, (*keys, "class_names"))
    for key in keys:
        if key not in arrays:
            raise ConfigError(
                f"{path}: got no array {key}, expected {', '.join(keys)}."
            )
    names = arrays.pop("class_names", np.empty(0, str))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ConfigError(
            f"{path}: class_names has shape {names.shape} and dtype {names.dtype}, "
            "expected one text for each class."
        )
    return arrays, tuple(names.tolist())


def _read(path: Path, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {key: file[key] for key in wanted if key in file.files}
    # A damaged file makes zipfile, zlib and NumPy raise a dozen unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}), expected an .npz file of plain arrays."
        ) from error
