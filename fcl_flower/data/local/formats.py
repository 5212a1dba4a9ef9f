"""Files of local data, in any of the formats that suit a modality."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, require_extra
from fcl_flower.data.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
    array_split,
)
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.tables import (
    LABEL,
    label_name,
    read_arrays,
    read_rows,
    read_texts,
)
from fcl_flower.data.texts import TextDataset

FOLDER = "/"
"""Stands for the ending of a folder of images."""

ENDINGS: dict[type[Dataset], tuple[str, ...]] = {
    TabularDataset: (".csv", ".npz"),
    TextDataset: (".csv", ".jsonl", ".jsonl.gz"),
    TimeSeriesDataset: (".npz",),
    ImageDataset: (FOLDER, ".npz"),
}
_IMAGES = (".png", ".jpg", ".jpeg")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
"""Eight bits a channel: what goes beyond would be cut off, not scaled."""


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """Samples with their labels by name; read-only.

    Attributes:
        where: what an error calls the file.
        x: the samples, as a `Split` has them.
        names: the labels that occur, sorted.
        codes: int64, shape (N,), index of each sample's label in ``names``.
        unit: what a sample is in the file, such as ``line``.
        locations: which of them each sample is.
        columns: sorted names of a sample's numbers; empty where they have none.
    """

    where: str
    x: Any
    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]
    unit: str
    locations: Sequence[object]
    columns: tuple[str, ...] = ()

    def location(self, label: str) -> str:
        """Locate the first sample of a label that occurs."""
        first = int(np.argmax(self.codes == self.names.index(label)))
        return f"{self.where}: {self.unit} {self.locations[first]}"

    def split(self, numbers: Mapping[str, int]) -> Split:
        """Number the labels, all of which ``numbers`` has."""
        y = np.array([numbers[name] for name in self.names], np.int64)[self.codes]
        y.setflags(write=False)
        return Split(self.x, y)


def ending(path: Path) -> str:
    """Tell the ending of a file, or `FOLDER`; empty for an unknown one."""
    if path.is_dir():
        return FOLDER
    known = {end for ends in ENDINGS.values() for end in ends}
    return next((end for end in sorted(known) if path.name.endswith(end)), "")


def read_samples(
    path: Path, dataset_type: type[Dataset], input_shape: tuple[int, ...]
) -> FileSamples:
    """Read the samples of a file, or of a folder of images."""
    if not path.exists():
        raise ConfigError(f"{path} is missing, expected a file, or a folder of images")
    end = ending(path)
    if end not in ENDINGS[dataset_type]:
        expected = " or ".join(
            "a folder of images" if e == FOLDER else e for e in ENDINGS[dataset_type]
        )
        raise ConfigError(f"{path}: expected {expected} for {dataset_type.modality}")
    if end == FOLDER:
        return _pictures(path, input_shape)
    if dataset_type is TextDataset:
        return _texts(path)
    found = _numbers(path) if end == ".csv" else _arrays(path, dataset_type)
    shape = found.x.shape[1:]
    if dataset_type is not ImageDataset and shape != input_shape:
        raise ConfigError(
            f"{path}: samples have shape {shape}, expected {input_shape}, which the "
            "model takes"
        )
    return found


def _coded(labels: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    names = tuple(sorted(set(labels)))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes[label] for label in labels], np.int64)


def _texts(path: Path) -> FileSamples:
    lines, texts, labels = zip(*read_texts(path), strict=True)
    return FileSamples(str(path), texts, *_coded(labels), "line", lines)


def _numbers(path: Path) -> FileSamples:
    """Read the numbers of all columns but ``label``, in the order of their names.

    Two files with the same columns thus agree, in whatever order each has them.
    """
    # As numbers at once: the cells themselves would take ten times the memory.
    numbers, labels, lines = array("f"), [], array("q")
    columns: list[str] = []
    for line, row in read_rows(path, (LABEL,)):
        columns = columns or sorted(row.keys() - {LABEL})
        labels.append(label_name(row[LABEL], f"{path}: line {line}: {LABEL}"))
        lines.append(line)
        for name in columns:
            try:
                numbers.append(float(row[name]))
            except ValueError as error:
                raise ConfigError(
                    f"{path}: line {line}: {name} is {row[name]!r:.60}, expected a "
                    "number"
                ) from error
    if not columns:
        raise ConfigError(
            f"{path}: line 1 names no column but label, expected columns of numbers"
        )
    x = np.frombuffer(numbers, np.float32).reshape(len(lines), len(columns))
    x.setflags(write=False)
    if not (finite := np.isfinite(x)).all():
        row_number, column = np.argwhere(~finite)[0]
        raise ConfigError(
            f"{path}: line {lines[row_number]}: {columns[column]} is no finite number "
            "of float32, expected one"
        )
    return FileSamples(str(path), x, *_coded(labels), "line", lines, tuple(columns))


def _arrays(path: Path, dataset_type: type[Dataset]) -> FileSamples:
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
    found = [label_name(label, f"{path}: class_names: label") for label in labels]
    order, codes = _coded(found)
    rows = range(len(split.y))
    return FileSamples(
        str(path), split.x, order, codes[number_codes], "y at index", rows
    )


def _pictures(folder: Path, input_shape: tuple[int, ...]) -> FileSamples:
    """Read images in folders named by label, scaled bilinearly to the model's size.

    Names that begin with a dot are left alone.
    """
    channels, *size = input_shape
    files = [(label, file) for label in _visible(folder) for file in _images_in(label)]
    if not files:
        raise ConfigError(
            f"{folder} is empty, expected folders of images, named by label"
        )
    mode = "L" if channels == 1 else "RGB"
    x = np.empty((len(files), *size, *[3] * (mode == "RGB")), np.uint8)
    for image, (_, file) in zip(x, files, strict=True):
        image[:] = _pixels(file, mode, (size[1], size[0]))
    x.setflags(write=False)
    labels = [label_name(label.name, f"{label}: label") for label, _ in files]
    names = [f"{label.name}/{file.name}" for label, file in files]
    return FileSamples(str(folder), x, *_coded(labels), "image", names)


def _images_in(label: Path) -> list[Path]:
    if not label.is_dir():
        raise ConfigError(f"{label} is a file, expected a folder named by a label")
    files = _visible(label)
    for file in files:
        if file.suffix.lower() not in _IMAGES:
            raise ConfigError(f"{file} is no image, expected {', '.join(_IMAGES)}")
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> npt.NDArray[Any]:
    with require_extra("images", str(file)):
        from PIL import Image
    try:
        with Image.open(file) as image:
            if image.mode not in _MODES:
                raise ValueError(f"its pixels are {image.mode}")
            pixels = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
    # A damaged file makes Pillow raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{file} cannot be read ({error}), expected an image of 8 bits a channel"
        ) from error
    return np.asarray(pixels)
