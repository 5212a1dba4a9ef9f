"""Files of local data, in any of the formats that suit a modality."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
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
    array_samples,
    array_split,
)
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.tables import (
    LABEL,
    TEXT,
    Row,
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


def count_samples(path: Path) -> int:
    """Count the samples of a file, or of a folder of images, without reading them."""
    end = ending(path)
    if end == FOLDER:
        return sum(len(_images_in(label)) for label in _visible(path))
    if end == ".npz":
        return len(read_arrays(path, ("y",))[0]["y"])
    return sum(1 for _ in read_rows(path, (LABEL,)))


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
        numbers.extend(_cells(row, columns, f"{path}: line {line}"))
    if not columns:
        raise ConfigError(
            f"{path}: line 1 names no column but label, expected columns of numbers"
        )
    x = _table(numbers, path, lines, columns)
    return FileSamples(str(path), x, *_coded(labels), "line", lines, tuple(columns))


def _cells(row: Row, columns: Sequence[str], where: str) -> Iterator[float]:
    for name in columns:
        try:
            yield float(row[name])
        except (TypeError, ValueError) as error:  # a cell of JSON may be anything
            raise ConfigError(
                f"{where}: {name} is {row[name]!r:.60}, expected a number"
            ) from error


def _table(
    numbers: "array[float]", path: Path, lines: Sequence[int], columns: Sequence[str]
) -> npt.NDArray[np.float32]:
    x = np.frombuffer(numbers, np.float32).reshape(len(lines), len(columns))
    x.setflags(write=False)
    if not (finite := np.isfinite(x)).all():
        row_number, column = np.argwhere(~finite)[0]
        raise ConfigError(
            f"{path}: line {lines[row_number]}: {columns[column]} is no finite number "
            "of float32, expected one"
        )
    return x


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


def _pixels(file: Path, mode: str, size: tuple[int, int] | None) -> npt.NDArray[Any]:
    with require_extra("images", str(file)):
        from PIL import Image
    try:
        with Image.open(file) as image:
            if image.mode not in _MODES:
                raise ValueError(f"its pixels are {image.mode}")
            pixels = image.convert(mode)
            if size is not None:
                pixels = pixels.resize(size, Image.Resampling.BILINEAR)
    # A damaged file makes Pillow raise many unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{file} cannot be read ({error}), expected an image of 8 bits a channel"
        ) from error
    return np.asarray(pixels)


# ---- samples without labels

ROWS = (".csv", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True, eq=False)
class RawSamples:
    """Samples of a file or a folder that is asked about.

    Attributes:
        x: as in `FileSamples`; a list of arrays where images keep their sizes.
        names: of each sample, such as ``new.csv:2`` for what is on line 2.
        labels: the label of each sample where the file has labels; empty elsewhere.
    """

    x: Any
    names: tuple[str, ...]
    labels: tuple[str, ...] = ()


def read_raw(
    path: Path,
    dataset_type: type[Dataset],
    input_shape: tuple[int, ...],
    columns: Sequence[str],
    form: str = "",
) -> RawSamples:
    """Read the samples of a file, or images, which need no label.

    A column ``label`` is told apart, and is no feature.

    Args:
        path: a file; an image, or a folder with images in it or below.
        dataset_type: what the model takes.
        input_shape: of the model; images keep their size where it says 0 pixels.
        columns: that a table has to have; in the order of the file where nobody knows.
        form: ending of a file that has none.
    """
    if not (form or path.exists()):
        raise ConfigError(f"{path} is missing, expected a file, or a folder of images")
    end = form or ending(path)
    picture = path.suffix.lower() in _IMAGES
    allowed = {
        ImageDataset: (FOLDER, ".npz", *_IMAGES),
        TimeSeriesDataset: (".npz",),
        TextDataset: ROWS,
        TabularDataset: (*ROWS, ".npz"),
    }[dataset_type]
    if end not in allowed and not (picture and dataset_type is ImageDataset):
        names = ("a folder of images" if e == FOLDER else e for e in allowed)
        expected = " or ".join(names)
        raise ConfigError(f"{path}: expected {expected} for {dataset_type.modality}")
    if end == ".npz":
        return _raw_arrays(path, dataset_type, input_shape)
    if end in ROWS:
        if dataset_type is TextDataset:
            return _raw_texts(path, form)
        return _raw_numbers(path, input_shape, columns, form)
    return _raw_pictures(path, input_shape)


def _raw_arrays(
    path: Path, dataset_type: type[Dataset], input_shape: tuple[int, ...]
) -> RawSamples:
    arrays, _ = read_arrays(path, ("x",))
    x = array_samples(dataset_type, arrays["x"], f"{path}: x")
    if dataset_type is not ImageDataset and x.shape[1:] != input_shape:
        raise ConfigError(
            f"{path}: samples have shape {x.shape[1:]}, expected {input_shape}, which "
            "the model takes"
        )
    return RawSamples(x, tuple(f"{path}:{row}" for row in range(len(x))))


def _raw_texts(path: Path, form: str) -> RawSamples:
    texts, names, labels = [], [], _Labels()
    for line, row in read_rows(path, (TEXT,), form):
        where = f"{path}: line {line}"
        if not isinstance(row[TEXT], str):
            raise ConfigError(f"{where}: {TEXT} is {row[TEXT]!r:.60}, expected a text")
        texts.append(row[TEXT])
        names.append(f"{path}:{line}")
        labels.add(row, where)
    return RawSamples(tuple(texts), tuple(names), labels.found())


def _raw_numbers(
    path: Path, input_shape: tuple[int, ...], columns: Sequence[str], form: str
) -> RawSamples:
    numbers, names, lines, labels = array("f"), [], array("q"), _Labels()
    for line, row in read_rows(path, columns, form):
        where = f"{path}: line {line}"
        columns = columns or [name for name in row if name != LABEL]
        for name in row.keys() - {*columns, LABEL}:
            raise ConfigError(
                f"{where} has a column {name!r:.60} that the model does not know, "
                f"expected {', '.join(columns)}"
            )
        if len(columns) != input_shape[0]:
            raise ConfigError(
                f"{where} has {len(columns)} columns of numbers, expected the "
                f"{input_shape[0]} that the model takes"
            )
        numbers.extend(_cells(row, columns, where))
        names.append(f"{path}:{line}")
        lines.append(line)
        labels.add(row, where)
    x = _table(numbers, path, lines, columns)
    return RawSamples(x, tuple(names), labels.found())


class _Labels:
    """Labels of the rows so far, of a file that has them in all rows or in none."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._rows = 0

    def add(self, row: Row, where: str) -> None:
        self._rows += 1
        if row.get(LABEL) not in (None, ""):
            self._names.append(label_name(row[LABEL], f"{where}: {LABEL}"))

    def found(self) -> tuple[str, ...]:
        return tuple(self._names) if len(self._names) == self._rows else ()


def _raw_pictures(path: Path, input_shape: tuple[int, ...]) -> RawSamples:
    files = [path]
    if path.is_dir():
        below = sorted(file for file in path.rglob("*") if file.is_file())
        hidden = [file.relative_to(path).parts for file in below]
        shown = zip(below, hidden, strict=True)
        files = [f for f, parts in shown if not any(p[0] == "." for p in parts)]
    for file in files:
        if file.suffix.lower() not in _IMAGES:
            raise ConfigError(f"{file} is no image, expected {', '.join(_IMAGES)}")
    if not files:
        raise ConfigError(f"{path} is empty, expected images, in it or below")
    channels, *size = input_shape
    mode = "L" if channels == 1 else "RGB"
    scaled = (size[1], size[0]) if any(size) else None
    x = [_pixels(file, mode, scaled) for file in files]
    return RawSamples(x, tuple(map(str, files)))
