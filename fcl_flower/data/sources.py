"""Whole data sets by name: scikit-learn's digits, ``NAME.npz`` files, the Hub."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.data.hub import load_hub
from fcl_flower.data.imageset import ImageSet, Split, checked_set, checked_split
from fcl_flower.data.partition import hold_out
from fcl_flower.errors import ConfigError

__all__ = ["ImageSet", "Split", "load_source"]

_HUB = "hub:"
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=16)
def load_source(name: str, data_root: Path) -> ImageSet:
    """Return the data set called ``name``; later calls return the same object.

    Args:
        name: ``digits`` (1,797 real 8x8 images, no download), ``NAME`` for
            ``NAME.npz`` in ``data_root`` or its folder ``images``, or ``hub:NAME``
            for the Hugging Face Hub or a local folder of images.
        data_root: where files are looked for; need not exist for ``digits``.

    Raises:
        ConfigError: there is no such data set, or its file is not as expected.
    """
    if name.startswith(_HUB):
        return load_hub(name, name.removeprefix(_HUB))
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"dataset: got {name!r}, expected digits, a file's name without folder "
            "and .npz, or hub:NAME."
        )
    if name == "digits":
        return _digits()
    folders = (data_root, data_root / "images")
    for folder in folders:
        path = folder / f"{name}.npz"
        if path.is_file():
            return _load_npz(name, path)
    found = sorted({file.stem for folder in folders for file in folder.glob("*.npz")})
    raise ConfigError(
        f"dataset: got {name!r}, expected digits, hub:NAME, or a file {name}.npz with "
        f"the arrays {', '.join(_ARRAYS)} in {folders[0]} or {folders[1]} "
        "(set --data-root or $FCL_DATA); "
        f"files there: {', '.join(found) if found else 'none'}."
    )


def _digits() -> ImageSet:
    """Return scikit-learn's digits, a quarter of each class as test images."""
    # Imported here since it takes a second, and other sets do without.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    y = labels.astype(np.int64)
    # The split is part of the data set: the same whatever the run's seed.
    train, test = hold_out(y, 0.25, np.random.default_rng(0))
    train_split = checked_split(x[train], y[train], "x_train", "y_train")
    test_split = checked_split(x[test], y[test], "x_test", "y_test")
    return checked_set("digits", "digits", train_split, test_split, ())


def _load_npz(name: str, path: Path) -> ImageSet:
    """Return the data set in ``path``, every array checked."""
    arrays = _read_npz(path)
    for key in _ARRAYS:
        if key not in arrays:
            raise ConfigError(
                f"{path}: got no array {key}, expected {', '.join(_ARRAYS)}."
            )
    train, test = (
        checked_split(arrays[x], arrays[y], f"{path}: {x}", f"{path}: {y}")
        for x, y in (("x_train", "y_train"), ("x_test", "y_test"))
    )
    names = arrays.get("class_names", np.empty(0, str))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise ConfigError(
            f"{path}: class_names has shape {names.shape} and dtype {names.dtype}, "
            "expected one text for each class."
        )
    return checked_set(name, str(path), train, test, tuple(names.tolist()))


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file that may be broken, without unpickling any."""
    wanted = (*_ARRAYS, "class_names")
    try:
        # Opened here, because np.load leaves a damaged file open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {key: file[key] for key in wanted if key in file.files}
    # A damaged file makes zipfile, zlib and NumPy raise a dozen unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}), expected an .npz file of plain arrays."
        ) from error
