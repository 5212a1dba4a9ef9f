"""Whole data sets by name: those without a download, files, and the Hub."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.data.dataset import DataSet
from fcl_flower.data.hub import load_hub
from fcl_flower.data.imageset import ImageSet, Split, checked_set, checked_split
from fcl_flower.data.jsonl import TRAIN, load_jsonl
from fcl_flower.data.partition import hold_out
from fcl_flower.data.stdlib_docs import load_stdlib_docs
from fcl_flower.errors import ConfigError

__all__ = ["DataSet", "ImageSet", "Split", "load_source"]

_HUB = "hub:"
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@lru_cache(maxsize=16)
def load_source(name: str, data_root: Path) -> DataSet:
    """Return the data set called ``name``; later calls return the same object.

    Args:
        name: one of

            - ``digits``: 1,797 real 8x8 images, no download;
            - ``stdlib-docs``: docstrings of Python's own modules, no download;
            - ``NAME``: images in ``NAME.npz`` in ``data_root`` or its folder
              ``images``, or else texts in a folder ``NAME`` in ``data_root`` or its
              folder ``text`` (see `load_jsonl`);
            - ``NAME:FIELD``: texts with the label called ``FIELD`` instead of
              ``label``, such as ``trec:fine``;
            - ``hub:NAME``: the Hugging Face Hub or a local folder.
        data_root: where files are looked for; need not exist for the sets without
            a download.

    Raises:
        ConfigError: there is no such data set, or its file is not as expected.
    """
    if name.startswith(_HUB):
        return load_hub(name, name.removeprefix(_HUB))
    if not re.fullmatch(r"\w[\w.-]*(:\w+)?", name):
        raise ConfigError(
            f"dataset: got {name!r}, expected digits, stdlib-docs, a file's name "
            "without folder and .npz, a folder's name, FOLDER:FIELD, or hub:NAME."
        )
    if name == "digits":
        return _digits()
    if name == "stdlib-docs":
        return load_stdlib_docs()
    stem, _, field = name.partition(":")
    image_folders = (data_root, data_root / "images")
    text_folders = (data_root, data_root / "text")
    for folder in image_folders:
        path = folder / f"{stem}.npz"
        # Images have no second label that a field could mean.
        if path.is_file() and not field:
            return _load_npz(name, path)
    for folder in text_folders:
        if (folder / stem / TRAIN).is_file():
            return load_jsonl(name, folder / stem, field or "label")
    files = sorted(
        {path.stem for place in image_folders for path in place.glob("*.npz")}
    )
    folders = sorted(
        {
            path.parent.name
            for place in text_folders
            for path in place.glob(f"*/{TRAIN}")
        }
    )
    raise ConfigError(
        f"dataset: got {name!r}, expected digits, stdlib-docs, hub:NAME, a file "
        f"{stem}.npz with the arrays {', '.join(_ARRAYS)} in {image_folders[0]} or "
        f"{image_folders[1]}, or a folder {stem} with {TRAIN} in {text_folders[0]} or "
        f"{text_folders[1]} (set --data-root or $FCL_DATA); "
        f"files there: {', '.join(files) if files else 'none'}; "
        f"folders there: {', '.join(folders) if folders else 'none'}."
    )


def known_sources(data_root: Path) -> dict[str, str]:
    """Return what `load_source` takes, by name, with one line about each."""
    found = {
        "digits": "1,797 real 8x8 images, comes with scikit-learn",
        "stdlib-docs": "docstrings of Python's standard library: text, 16 classes",
    }
    for folder in (data_root, data_root / "images"):
        for path in sorted(folder.glob("*.npz")):
            found[path.stem] = str(path)
    for folder in (data_root, data_root / "text"):
        for path in sorted(folder.glob(f"*/{TRAIN}")):
            found[path.parent.name] = str(path.parent)
    return found | {
        "NAME": f"x_train, y_train, x_test, y_test of NAME.npz in {data_root}; or "
        f"text and label of NAME/{TRAIN} and NAME/test.jsonl.gz there",
        "NAME:FIELD": "the same text, with another field for a label",
        "hub:NAME": "of the Hugging Face Hub, or a folder (extra: hub)",
    }


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
