"""Whole data sets by name: those without a download, files, and the Hub."""

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import (
    ARRAYS,
    ImageDataset,
    array_dataset,
    array_split,
)
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.datasets.hub import load_hub
from fcl_flower.data.datasets.jsonl import TRAIN, load_jsonl
from fcl_flower.data.datasets.npz import load_npz
from fcl_flower.data.datasets.stdlib_docs import load_stdlib_docs
from fcl_flower.data.datasets.union import united
from fcl_flower.data.partition import train_valid_split

__all__ = ["Dataset", "known_datasets", "load_dataset"]

_DIGITS = "sklearn/datasets/data/digits.csv.gz"
_HUB = "hub:"
_registered: dict[str, Dataset] = {}


@lru_cache(maxsize=16)
def load_dataset(name: str, data_root: Path) -> Dataset:
    """Return the data set called ``name``; later calls return the same object.

    Args:
        name: one of

            - ``digits``: 1,797 real 8x8 images, no download;
            - ``stdlib-docs``: docstrings of Python's own modules, no download;
            - ``NAME``: arrays in a file ``NAME.npz``, or texts in a folder ``NAME``
              (see `load_jsonl`), in ``data_root`` or a folder directly in it. Arrays
              of two dimensions are plain numbers (N, numbers). Three-dimensional ones
              in floating point are series (N, channels, steps) if some value lies
              outside [0, 1]; both stay as they are. All others are images;
            - ``NAME:FIELD``: texts with the label called ``FIELD`` instead of
              ``label``, such as ``trec:fine``;
            - ``hub:NAME``: the Hugging Face Hub or a local folder;
            - several of these with ``+`` between them, such as ``mnist+notmnist``:
              the classes of all side by side (see `united`).
        data_root: where files are looked for; need not exist for the sets without
            a download.

    Raises:
        ConfigError: there is no such data set, or two of them, or its file is not as
            expected.
    """
    members = name.split("+")
    if len(members) > 1:
        return united(name, [_load(member, data_root) for member in members])
    return _load(name, data_root)


@contextmanager
def registered(dataset: Dataset) -> Iterator[None]:
    """Let `load_dataset` find a data set by its name, in this process, for a while.

    Args:
        dataset: its name stands for these samples and no others, as scenarios are
            kept by the names of their data sets.
    """
    _registered[dataset.name] = dataset
    try:
        yield
    finally:
        del _registered[dataset.name]
        load_dataset.cache_clear()


def _load(name: str, data_root: Path) -> Dataset:
    """Return a data set that is no union."""
    if name in _registered:
        return _registered[name]
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
    found = _found(data_root)
    # Images have no second label that a field could mean.
    places = [place for place in found.get(stem, []) if place.is_dir() or not field]
    if len(places) > 1:
        raise ConfigError(
            f"dataset: got {name!r}, expected one of that name, but there are "
            f"{' and '.join(map(str, places))}."
        )
    if not places:
        raise ConfigError(
            f"dataset: got {name!r}, expected digits, stdlib-docs, hub:NAME, a file "
            f"{stem}.npz with the arrays {', '.join(ARRAYS)}, or a folder {stem} with "
            f"{TRAIN}, in {data_root} or a folder directly in it (set --data-root or "
            f"$FCL_DATA); found there: {', '.join(sorted(found)) or 'none'}."
        )
    if places[0].is_dir():
        return load_jsonl(name, places[0], field or "label")
    return load_npz(name, places[0])


def known_datasets(data_root: Path) -> dict[str, str]:
    """Return what `load_dataset` takes, by name, with one line about each."""
    found = {
        name: " and ".join(map(str, places))
        for name, places in sorted(_found(data_root).items())
    }
    return {
        "digits": "1,797 real 8x8 images, comes with scikit-learn",
        "stdlib-docs": "docstrings of Python's standard library: text, 16 classes",
        **found,
        "NAME": f"{', '.join(ARRAYS)} of NAME.npz in {data_root} or a folder in it; or "
        f"text and label of NAME/{TRAIN} and NAME/test.jsonl.gz there",
        "NAME:FIELD": "the same text, with another field for a label",
        "hub:NAME": "of the Hugging Face Hub, or a folder (extra: hub)",
        "A+B": "the classes of several data sets side by side",
    }


def _found(data_root: Path) -> dict[str, list[Path]]:
    """Return the files of arrays and the folders of texts there are, by name."""
    found = defaultdict(list)
    for folder in ("", "*/"):
        for path in sorted(data_root.glob(f"{folder}*.npz")):
            found[path.stem].append(path)
        for path in sorted(data_root.glob(f"{folder}*/{TRAIN}")):
            found[path.parent.name].append(path.parent)
    return found


def _digits() -> ImageDataset:
    """Return scikit-learn's digits, a quarter of each class as test images."""
    # Its file, since its loader imports all of scikit-learn: a second and more, in
    # every process that a SuperNode starts, which is one for each message.
    path = distribution("scikit-learn").locate_file(_DIGITS)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.int64)
    x = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    y = rows[:, -1]
    # The split is part of the data set: the same whatever the run's seed.
    train, test = (
        array_split(ImageDataset, x[chosen], y[chosen], "x", "y")
        for chosen in train_valid_split(y, 0.25, np.random.default_rng(0))
    )
    return array_dataset(ImageDataset, "digits", "digits", train, test, ())
