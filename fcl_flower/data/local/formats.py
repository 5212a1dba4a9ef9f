"""Files of local data, in any of the formats that suit a modality."""

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, extra
from fcl_flower.data.arrays import (
    ImageDataset,
    TabularDataset,
    TimeSeriesDataset,
    array_split,
    read_arrays,
)
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.texts import TextDataset, rows_of


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
        columns: names of the numbers of a sample, sorted; empty where they have none.
    """

    where: str
    x: Any
    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]
    unit: str
    locations: Sequence[object]
    columns: tuple[str, ...] = ()

    def location(self, label: str) -> str:
        """Return where the first sample of a label that occurs stands."""
        first = int(np.argmax(self.codes == self.names.index(label)))
        return f"{self.where}: {self.unit} {self.locations[first]}"

    def split(self, numbers: Mapping[str, int]) -> Split:
        """Return the samples with numbers for labels; knows all that occur."""
        y = np.array([numbers[name] for name in self.names], np.int64)[self.codes]
        y.setflags(write=False)
        return Split(self.x, y)


def coded(labels: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the labels that occur, sorted, and the index of each label in them."""
    names = tuple(sorted(set(labels)))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes[label] for label in labels], np.int64)


def checked_label(label: str, where: str) -> str:
    """Return a label that can be printed.

    Args:
        label: as it stands in the file.
        where: what an error says before it.

    Raises:
        ConfigError: it is empty, or has characters that cannot be printed.
    """
    if not label or not label.isprintable():
        raise ConfigError(f"{where}: label is {label!r:.60}, expected a printable text")
    return label


LABEL = "label"
TEXT = "text"


def read_texts(path: Path) -> FileSamples:
    """Return the texts of the column ``text``; other columns are left alone.

    Args:
        path: of a file in UTF-8 whose first line names the columns. Empty lines do
            not count.

    Raises:
        ConfigError: the file is not as described; names the line.
    """
    rows = _rows(path)
    header = next(rows)[1]
    text, label = (_column(header, name, path) for name in (TEXT, LABEL))
    texts, labels, lines = [], [], array("q")
    for line, cells in rows:
        labels.append(checked_label(cells[label], f"{path}: line {line}"))
        texts.append(cells[text])
        lines.append(line)
    _not_empty(lines, path)
    return FileSamples(str(path), tuple(texts), *coded(labels), "line", lines)


def read_numbers(path: Path) -> FileSamples:
    """Return the numbers of all columns but ``label``, in the order of their names.

    Two files with the same columns thus agree, in whatever order each has them.

    Args:
        path: as for `read_texts`.

    Raises:
        ConfigError: the file is not as described, or a cell holds no finite number of
            float32; names line and column.
    """
    rows = _rows(path)
    header = next(rows)[1]
    label = _column(header, LABEL, path)
    columns = sorted(set(header) - {LABEL})
    if not columns:
        raise ConfigError(
            f"{path}: line 1 names no column but label, expected columns of numbers"
        )
    order = [header.index(name) for name in columns]
    numbers, labels, lines = array("f"), [], array("q")
    for line, cells in rows:
        labels.append(checked_label(cells[label], f"{path}: line {line}"))
        lines.append(line)
        try:
            numbers.extend([float(cells[index]) for index in order])
        except ValueError:
            _refuse_cell(cells, order, columns, f"{path}: line {line}")
    _not_empty(lines, path)
    x = np.frombuffer(numbers, np.float32).reshape(len(lines), len(columns))
    x.setflags(write=False)
    if not (finite := np.isfinite(x)).all():
        row, column = np.argwhere(~finite)[0]
        raise ConfigError(
            f"{path}: line {lines[row]}: {columns[column]} is no finite number of "
            "float32, expected one"
        )
    return FileSamples(
        str(path), x, *coded(labels), "line", lines, columns=tuple(columns)
    )


def header_of(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        ConfigError: the file cannot be read, or names none.
    """
    return next(_rows(path))[1]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number and the cells of each row; first of the header."""
    line = 0
    try:
        # Spreadsheets write a byte order mark, which is no part of the first name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _check_header(header, path)
            yield 1, header
            line = reader.line_num
            for cells in reader:
                if cells and len(cells) != len(header):
                    raise ConfigError(
                        f"{path}: line {line + 1} has {len(cells)} cells, expected "
                        f"{len(header)}, one for each column"
                    )
                if cells:
                    yield line + 1, cells
                # A quoted cell may go over several lines.
                line = reader.line_num
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: cannot be read after line {line} ({error}), expected "
            "comma-separated values in UTF-8"
        ) from error


def _check_header(header: list[str], path: Path) -> None:
    if not header:
        raise ConfigError(f"{path}: line 1 is empty, expected the names of the columns")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ConfigError(
            f"{path}: line 1 names column {twice!r} twice, expected different names"
        )


def _column(header: list[str], name: str, path: Path) -> int:
    if name not in header:
        raise ConfigError(
            f"{path}: line 1 names no column {name}, but "
            f"{', '.join(map(repr, header))}, expected one"
        )
    return header.index(name)


def _refuse_cell(
    cells: list[str], order: list[int], columns: list[str], where: str
) -> None:
    """Name the first cell that holds no number."""
    for index, name in zip(order, columns, strict=True):
        try:
            float(cells[index])
        except ValueError as error:
            raise ConfigError(
                f"{where}: {name} is {cells[index]!r:.60}, expected a number"
            ) from error


def _not_empty(lines: "array[int]", path: Path) -> None:
    if not lines:
        raise ConfigError(f"{path} has no line below the first, expected samples")


SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
"""Eight bits a channel: what goes beyond would be cut off, not scaled."""


def read_pictures(folder: Path, input_shape: tuple[int, ...]) -> FileSamples:
    """Return images of any size in the size of the model, scaled bilinearly.

    Args:
        folder: holds folders named by label, with PNG or JPEG files in them. Names that
            begin with a dot are left alone.
        input_shape: (C, H, W) of the model: grey for one channel, otherwise RGB.

    Raises:
        ConfigError: Pillow is missing, or the folder is not as described; names the
            file.
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
    labels = [checked_label(label.name, str(label)) for label, _ in files]
    names = [f"{label.name}/{file.name}" for label, file in files]
    return FileSamples(str(folder), x, *coded(labels), "image", names)


def _images_in(label: Path) -> list[Path]:
    if not label.is_dir():
        raise ConfigError(f"{label} is a file, expected a folder named by a label")
    files = _visible(label)
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"{file} is no image, expected {', '.join(SUFFIXES)}")
    return files


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> npt.NDArray[Any]:
    """Return one image, shape (H, W) or (H, W, 3)."""
    with extra("images", str(file)):
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
