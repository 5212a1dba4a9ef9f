"""The registry of data sets: built-in ones, packages, files and the Hub."""

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
from fcl_flower.data.instructions import (
    INSTRUCTIONS,
    has_instructions,
    instructions_of,
    load_instructions,
)
from fcl_flower.data.partition import train_valid_split
from fcl_flower.data.texts import TRAIN, load_jsonl, load_stdlib_docs

_DIGITS_FILE = "sklearn/datasets/data/digits.csv.gz"


def _digits() -> ImageDataset:
    # This reads scikit-learn's file, since importing scikit-learn takes over a second
    # in each process of a SuperNode, which starts one for each message.
    path = distribution("scikit-learn").locate_file(_DIGITS_FILE)
    rows = np.loadtxt(str(path), delimiter=",", dtype=np.int64)
    x = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    y = rows[:, -1]
    # The split belongs to the data set, so the run's seed does not change it.
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
"""The registry of data sets that are no files.

Another package declares a callable that returns a `Dataset` under the entry point group
``fcl_flower.datasets``.
"""


@contextmanager
def registered(dataset: Dataset) -> Iterator[None]:
    """Let this process load a data set in memory by its name within the context."""
    name = dataset.name
    derived = variant_of(name) is not None or name.startswith(INSTRUCTIONS)
    if derived or "+" in name or name.startswith("hub:"):
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
            - the name of a data set of an installed package, or a data set that is
              `registered` in this process;
            - ``NAME``: arrays in a file ``NAME.npz``, or texts in a folder ``NAME``
              (see `load_jsonl`), in ``data_root`` or a folder directly in it;
              `from_arrays` says which arrays are images, time series or tables;
            - ``NAME:FIELD``: texts with the label called ``FIELD`` instead of
              ``label``, such as ``trec:fine``;
            - ``hub:NAME``: a data set of the Hugging Face Hub or a local folder;
            - several of these names joined by ``+``, such as ``mnist+notmnist``: the
              classes of all of them side by side;
            - ``held-out:NAME``, for any of these: a fifth of the training samples are
              the test samples, and the original test samples are not used;
            - ``rotated-90:NAME``, or 180 or 270: the images rotated by these degrees;
            - ``relabelled-N:NAME``: each class has the name of the class N places
              behind it;
            - ``instructions:NAME``: the texts as instructions, whose answers are the
              names of the classes.
        data_root: folder of the files; it need not exist for data sets that are no
            files.
    """
    if name.startswith(INSTRUCTIONS):
        texts = load_dataset(name.removeprefix(INSTRUCTIONS), data_root)
        return instructions_of(name, texts)
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
    stored = _stored(data_root)
    # A field names a label of texts; arrays have a single label.
    paths = [path for path in stored.get(stem, []) if path.is_dir() or not field]
    registered_name = name in DATASETS
    if len(paths) + registered_name > 1:
        others = ["a data set of that name that is no file"] * registered_name
        raise ConfigError(
            f"dataset: got {name!r}, expected one of that name, but there are "
            f"{' and '.join([*others, *map(str, paths)])}"
        )
    if registered_name:
        dataset = DATASETS[name]()
        if not isinstance(dataset, Dataset):
            raise ContractError(
                f"data set {name}: got a {type(dataset).__name__}, expected a Dataset"
            )
        return dataset
    if not paths:
        hint = unknown_name("dataset", name, sorted({*DATASETS, *stored}))
        raise ConfigError(
            f"{hint}; or hub:NAME, or a file {stem}.npz with the arrays "
            f"{', '.join(ARRAYS)}, or a folder {stem} with {TRAIN}, in {data_root} or "
            "a folder directly in it (set --data-root or $FCL_DATA)"
        )
    if paths[0].is_dir() and not field and has_instructions(paths[0] / TRAIN):
        return load_instructions(name, paths[0])
    if paths[0].is_dir():
        return load_jsonl(name, paths[0], field or "label")
    return load_npz(name, paths[0])


def known_datasets(data_root: Path) -> dict[str, str]:
    """List the names that `load_dataset` takes, with one line about each."""
    stored = {
        name: " and ".join(map(str, paths))
        for name, paths in sorted(_stored(data_root).items())
    }
    return {
        **{name: _ABOUT.get(name, "of an installed package") for name in DATASETS},
        **stored,
        "NAME": f"{', '.join(ARRAYS)} of NAME.npz in {data_root} or a folder in it; or "
        f"text and label of NAME/{TRAIN} and NAME/test.jsonl.gz there",
        "NAME:FIELD": "the same text, with another field for a label",
        "hub:NAME": "of the Hugging Face Hub, or a folder (extra: hub)",
        "A+B": "the classes of several data sets side by side",
        "held-out:NAME": "a fifth of the training samples of NAME for testing",
        "rotated-90:NAME": "images turned by 90, 180 or 270 degrees",
        "relabelled-N:NAME": "classes that go by the names of others",
        "instructions:NAME": "texts as instructions, answered by the names of classes",
    }


def _stored(data_root: Path) -> dict[str, list[Path]]:
    paths = defaultdict(list)
    for folder in ("", "*/"):
        for path in sorted(data_root.glob(f"{folder}*.npz")):
            paths[path.stem].append(path)
        for path in sorted(data_root.glob(f"{folder}*/{TRAIN}")):
            paths[path.parent.name].append(path.parent)
    return paths
