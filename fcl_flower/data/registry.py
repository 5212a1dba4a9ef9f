"""Data sets by name: built in, of installed packages, of files, and of the Hub."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, cast

import numpy as np

from fcl_flower.core.errors import (
    ConfigError,
    ContractError,
    config_error,
    unknown_name,
)
from fcl_flower.core.registry import Registry
from fcl_flower.data.arrays import (
    ARRAYS,
    ImageDataset,
    array_dataset,
    array_split,
    load_npz,
)
from fcl_flower.data.datasets import (
    Dataset,
    check_source,
    derive_dataset,
    unite,
    variant_of,
)
from fcl_flower.data.hub import load_hub
from fcl_flower.data.partition import train_valid_split
from fcl_flower.data.texts import TRAIN, load_jsonl, load_stdlib_docs

_DIGITS_FILE = "sklearn/datasets/data/digits.csv.gz"


def _digits() -> ImageDataset:
    # Its file, since its loader imports all of scikit-learn: a second and more, in
    # every process that a SuperNode starts, which is one for each message.
    path = distribution("scikit-learn").locate_file(_DIGITS_FILE)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.int64)
    x = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    y = rows[:, -1]
    # The split is part of the data set: the same whatever the run's seed.
    train, test = (
        array_split(ImageDataset, x[chosen], y[chosen], "x", "y")
        for chosen in train_valid_split(y, 0.25, np.random.default_rng(0))
    )
    return array_dataset(ImageDataset, "digits", "digits", train, test, ())


_BUILT_IN: dict[str, Callable[[], Dataset]] = {
    "digits": _digits,
    "stdlib-docs": load_stdlib_docs,
}
_ABOUT = {
    "digits": "1,797 real 8x8 images, comes with scikit-learn",
    "stdlib-docs": "docstrings of Python's standard library: text, 16 classes",
}

DATASETS = Registry[Callable[[], Dataset]](
    "dataset", "fcl_flower.datasets", cast(type[Any], Callable), _BUILT_IN
)
"""The data sets that are no files. Another package declares a callable that returns a
`Dataset` under the entry point group ``fcl_flower.datasets``."""


@contextmanager
def registered(dataset: Dataset) -> Iterator[None]:
    """Let this process load a data set in memory by its name, for a while."""
    name = dataset.name
    if variant_of(name) is not None or "+" in name or name.startswith("hub:"):
        raise config_error("dataset", name, "letters, digits, '_', '-' and dots")
    check_source(name)
    with DATASETS.registered(name, lambda: dataset):
        try:
            load_dataset.cache_clear()
            yield
        finally:
            load_dataset.cache_clear()


@lru_cache(maxsize=16)
def load_dataset(name: str, data_root: Path) -> Dataset:
    """Load the data set called ``name``; later calls return the same object.

    Args:
        name: one of

            - ``digits``: 1,797 real 8x8 images, no download;
            - ``stdlib-docs``: docstrings of Python's own modules, no download;
            - the name of a data set of an installed package, or one that is
              `registered` in this process;
            - ``NAME``: arrays in a file ``NAME.npz``, or texts in a folder ``NAME``
              (see `load_jsonl`), in ``data_root`` or a folder directly in it; arrays
              are told apart as by `from_arrays`;
            - ``NAME:FIELD``: texts with the label called ``FIELD`` instead of
              ``label``, such as ``trec:fine``;
            - ``hub:NAME``: the Hugging Face Hub or a local folder;
            - several of these with ``+`` between them, such as ``mnist+notmnist``:
              the classes of all side by side;
            - ``held-out:NAME``, of any of these: a fifth of the training samples are
              the test samples, and the set's own are left alone;
            - ``rotated-90:NAME``, or 180 or 270: the images turned;
            - ``relabelled-N:NAME``: its classes with the names of those N places behind
              them.
        data_root: where files are looked for; need not exist for the sets without
            a download.
    """
    if (whole := variant_of(name)) is not None:
        return derive_dataset(name, load_dataset(whole, data_root))
    members = [_load_source(member, data_root) for member in name.split("+")]
    return unite(name, members) if len(members) > 1 else members[0]


def _load_source(name: str, data_root: Path) -> Dataset:
    if name.startswith("hub:"):
        return load_hub(name, name.removeprefix("hub:"))
    check_source(name)
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    stem, _, field = name.partition(":")
    found = _stored(data_root)
    # Images have no second label that a field could mean.
    paths = [path for path in found.get(stem, []) if path.is_dir() or not field]
    known = name in DATASETS
    if len(paths) + known > 1:
        here = ["a data set of that name that is no file"] * known
        raise ConfigError(
            f"dataset: got {name!r}, expected one of that name, but there are "
            f"{' and '.join([*here, *map(str, paths)])}"
        )
    if known:
        made = DATASETS[name]()
        if not isinstance(made, Dataset):
            raise ContractError(
                f"data set {name}: got a {type(made).__name__}, expected a Dataset"
            )
        return made
    if not paths:
        hint = unknown_name("dataset", name, sorted({*DATASETS, *found}))
        raise ConfigError(
            f"{hint}; or hub:NAME, or a file {stem}.npz with the arrays "
            f"{', '.join(ARRAYS)}, or a folder {stem} with {TRAIN}, in {data_root} or "
            "a folder directly in it (set --data-root or $FCL_DATA)"
        )
    if paths[0].is_dir():
        return load_jsonl(name, paths[0], field or "label")
    return load_npz(name, paths[0])


def known_datasets(data_root: Path) -> dict[str, str]:
    """List what `load_dataset` takes, by name, with one line about each."""
    found = {
        name: " and ".join(map(str, paths))
        for name, paths in sorted(_stored(data_root).items())
    }
    return {
        **{name: _ABOUT.get(name, "of an installed package") for name in DATASETS},
        **found,
        "NAME": f"{', '.join(ARRAYS)} of NAME.npz in {data_root} or a folder in it; or "
        f"text and label of NAME/{TRAIN} and NAME/test.jsonl.gz there",
        "NAME:FIELD": "the same text, with another field for a label",
        "hub:NAME": "of the Hugging Face Hub, or a folder (extra: hub)",
        "A+B": "the classes of several data sets side by side",
        "held-out:NAME": "a fifth of the training samples of NAME for testing",
        "rotated-90:NAME": "images turned by 90, 180 or 270 degrees",
        "relabelled-N:NAME": "classes that go by the names of others",
    }


def _stored(data_root: Path) -> dict[str, list[Path]]:
    found = defaultdict(list)
    for folder in ("", "*/"):
        for path in sorted(data_root.glob(f"{folder}*.npz")):
            found[path.stem].append(path)
        for path in sorted(data_root.glob(f"{folder}*/{TRAIN}")):
            found[path.parent.name].append(path.parent)
    return found
