"""Files of local data, in any of the formats that suit a modality."""

from pathlib import Path

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
    array_split,
)
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.datasets.jsonl import rows_of
from fcl_flower.data.datasets.npz import read_arrays
from fcl_flower.data.datasets.text import TextDataset
from fcl_flower.data.local.image_folder import read_pictures
from fcl_flower.data.local.samples import FileSamples, checked_label, coded
from fcl_flower.data.local.tables import read_numbers, read_texts

FOLDER = "/"
"""Stands for the ending of a folder of images."""

ENDINGS: dict[type[Dataset], tuple[str, ...]] = {
    TabularDataset: (".csv", ".npz"),
    TextDataset: (".csv", ".jsonl", ".jsonl.gz"),
    TimeSeriesDataset: (".npz",),
    ImageDataset: (FOLDER, ".npz"),
}


def ending(path: Path) -> str:
    """Return which ending a file, or `FOLDER`, has; empty for an unknown one."""
    if path.is_dir():
        return FOLDER
    known = {end for ends in ENDINGS.values() for end in ends}
    return next((end for end in sorted(known) if path.name.endswith(end)), "")


def read_samples(
    path: Path, dataset_type: type[Dataset], input_shape: tuple[int, ...]
) -> FileSamples:
    """Return what a file holds.

    Args:
        path: of a file, or of a folder of images.
        dataset_type: what the model takes.
        input_shape: of the model.

    Raises:
        ConfigError: the file is missing, has an ending that does not suit the data, or
            is not as expected; one sentence names file and line, array or image.
    """
    if not path.exists():
        raise ConfigError(f"{path} is missing, expected a file, or a folder of images")
    end = ending(path)
    if end not in ENDINGS[dataset_type]:
        expected = " or ".join(
            "a folder of images" if e == FOLDER else e for e in ENDINGS[dataset_type]
        )
        raise ConfigError(f"{path}: expected {expected} for {dataset_type.modality}")
    if end == FOLDER:
        return read_pictures(path, input_shape)
    if end == ".npz":
        found = _from_npz(path, dataset_type)
    elif end == ".csv":
        found = read_texts(path) if dataset_type is TextDataset else read_numbers(path)
    else:
        found = _from_jsonl(path)
    shape = getattr(found.x, "shape", ())[1:]
    if dataset_type in (TabularDataset, TimeSeriesDataset) and shape != input_shape:
        raise ConfigError(
            f"{path}: samples have shape {shape}, expected {input_shape}, which the "
            "model takes"
        )
    return found


def _from_jsonl(path: Path) -> FileSamples:
    rows = list(rows_of(path, "label"))
    texts = tuple(text for text, _ in rows)
    labels = [label for _, label in rows]
    return FileSamples(
        str(path), texts, *coded(labels), "line", range(1, len(rows) + 1)
    )


def _from_npz(path: Path, dataset_type: type[Dataset]) -> FileSamples:
    """Return the arrays ``x`` and ``y``; labels are ``class_names`` or the numbers."""
    arrays, names = read_arrays(path, ("x", "y"))
    split = array_split(
        dataset_type, arrays["x"], arrays["y"], f"{path}: x", f"{path}: y"
    )
    numbers, number_codes = np.unique(split.y, return_inverse=True)
    end = len(names) if names else np.inf
    for number in numbers[(numbers < 0) | (numbers >= end)]:
        raise ConfigError(
            f"{path}: y has label {number}, expected "
            + (f"0..{len(names) - 1}, the class_names." if names else "none below 0.")
        )
    labels = [names[n] if names else str(n) for n in numbers.tolist()]
    found = [checked_label(label, f"{path}: class_names") for label in labels]
    order, codes = coded(found)
    return FileSamples(
        str(path),
        split.x,
        order,
        codes[number_codes],
        "y at index",
        range(len(split.y)),
    )
