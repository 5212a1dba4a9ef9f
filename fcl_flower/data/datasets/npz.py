"""Images, time series or tables in one file: ``NAME.npz``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import ARRAYS, checked_dataset
from fcl_flower.data.datasets.base import Dataset


def load_npz(name: str, path: Path) -> Dataset:
    """Return the data set in ``path``, every array checked.

    Args:
        name: what the set is called from now on.
        path: holds `ARRAYS`, and may hold ``class_names``.

    Raises:
        ConfigError: the file cannot be read, lacks an array, or an array is not as
            `from_arrays` wants it.
    """
    arrays, names = read_arrays(path, ARRAYS)
    return checked_dataset(name, str(path), arrays, names)


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
            raise ConfigError(f"{path}: got no array {key}, expected {', '.join(keys)}")
    names = arrays.pop("class_names", np.empty(0, str))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ConfigError(
            f"{path}: class_names has shape {names.shape} and dtype {names.dtype}, "
            "expected one text for each class"
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
            f"{path}: cannot be read ({error}), expected an .npz file of plain arrays"
        ) from error
