"""Readers of local data's files, in all formats of each modality."""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.config.run_config import LookAlikes
from fcl_flower.core.errors import ConfigError, Fault
from fcl_flower.data.arrays import (
    DIGITS,
    ImageDataset,
    Images,
    TabularDataset,
    TimeSeriesDataset,
    array_samples,
    array_split,
    first_equal,
)
from fcl_flower.data.datasets import Dataset, Split, fractions
from fcl_flower.data.instructions import (
    CLASS,
    InstructionDataset,
    has_instructions,
    prompt_of,
    read_instructions,
)
from fcl_flower.data.labels import refusal, spellings, tidy
from fcl_flower.data.pictures import PICTURES, Mode, read_picture
from fcl_flower.data.tables import (
    LABEL,
    TEXT,
    Row,
    checked_text,
    label_name,
    number,
    read_arrays,
    read_rows,
    read_texts,
)
from fcl_flower.data.texts import TextDataset

FOLDER = "/"
"""The string that stands for the ending of a folder of images."""

ENDINGS: dict[type[Dataset], tuple[str, ...]] = {
    TabularDataset: (".csv", ".npz"),
    TextDataset: (".csv", ".jsonl", ".jsonl.gz"),
    TimeSeriesDataset: (".npz",),
    ImageDataset: (FOLDER, ".npz"),
    InstructionDataset: (".jsonl", ".jsonl.gz"),
}
_LEFT_BEHIND = ("thumbs.db", "desktop.ini")
"""The files that Windows writes into folders that it shows, in lower case."""


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """The samples of a file with the names of their labels; read-only.

    Attributes:
        where: name of the file in errors.
        x: samples, as in a `Split`.
        names: labels that occur, sorted.
        codes: index of each sample's label in ``names``, int64, shape (N,).
        unit: unit of the file that holds a sample, such as ``line``.
        locations: place of each sample in such units, such as its line's number.
        columns: sorted names of a sample's numbers; empty if they have no names.
    """

    where: str
    x: Any
    names: tuple[str, ...]
    codes: npt.NDArray[np.int64]
    unit: str
    locations: Sequence[object]
    columns: tuple[str, ...] = ()

    def location(self, label: str) -> str:
        """Locate the first sample of a label in ``names``, for an error."""
        first = int(np.argmax(self.codes == self.names.index(label)))
        return f"{self.where}: {self.unit} {self.locations[first]}"

    def spelled(self, known: Sequence[str], rule: LookAlikes) -> "FileSamples":
        """Apply the rule to labels that look alike, or like a label in ``known``.

        With ``keep`` the labels stay, with ``merge`` they take the same spelling (see
        `spellings`), and with ``refuse`` they are an error.

        Raises:
            ConfigError: the rule refuses two labels, which the message names.
        """
        if rule == "keep":
            return self
        counts = np.bincount(self.codes).tolist()
        chosen = spellings(dict(zip(self.names, counts, strict=True)), known)
        if rule == "merge":
            labels = [chosen[name] for name in self.names]
            names, codes = _coded([n if n in known else tidy(n) for n in labels])
            return replace(self, names=names, codes=codes[self.codes])
        for name, other in chosen.items():
            if name != other:
                raise ConfigError(
                    f"{self.location(name)}: label is {refusal(name, other)}",
                    Fault.SPELLING,
                )
        return self

    def split(self, numbers: Mapping[str, int]) -> Split:
        """Make a split by the number of each label; ``numbers`` has all labels."""
        y = np.array([numbers[name] for name in self.names], np.int64)[self.codes]
        y.setflags(write=False)
        return Split(self.x, y)


def ending(path: Path) -> str:
    """Return the ending of a file, or `FOLDER`; empty for an unknown ending."""
    if path.is_dir():
        return FOLDER
    endings = {end for ends in ENDINGS.values() for end in ends}
    return next((end for end in sorted(endings) if path.name.endswith(end)), "")


def visible(folder: Path) -> list[Path]:
    """List a folder's entries, sorted, without hidden ones and those of Windows.

    A name that begins with a dot is hidden.
    """
    return sorted(
        path
        for path in folder.iterdir()
        if not path.name.startswith(".") and path.name.lower() not in _LEFT_BEHIND
    )


def sample_files(path: Path) -> list[Path]:
    """List the files that hold the samples of a file, or of a folder of images."""
    if not path.is_dir():
        return [path]
    return [file for label in visible(path) for file in _images_in(label)]


def columns_of(path: Path) -> tuple[str, ...]:
    """Read the sorted names of a table's columns of numbers; empty without names."""
    if ending(path) != ".csv":
        return ()
    _, row = next(read_rows(path, ()))
    return () if TEXT in row else _features(row, f"{path}: line 1")


def check_columns(
    columns: Sequence[str], where: str, expected: Sequence[str], whose: str
) -> None:
    """Refuse columns with other names than those expected, if both have names.

    ``whose`` says in errors whose columns are expected.
    """
    if not (columns and expected) or {*columns} == {*expected}:
        return
    more, fewer = {*columns} - {*expected}, {*expected} - {*columns}
    odd = " and ".join(
        f"{verb} {', '.join(map(repr, sorted(names)[:3]))}"
        for verb, names in (("has", more), ("lacks", fewer))
        if names
    )
    raise ConfigError(
        f"{where}: the table {odd}, expected the columns of {whose}", Fault.COLUMNS
    )


def read_samples(
    path: Path, dataset_type: type[Dataset], input_shape: tuple[int, ...]
) -> FileSamples:
    """Read the samples of a file, or of a folder of images."""
    if not path.exists():
        raise ConfigError(
            f"{path} is missing, expected a file, or a folder of images", Fault.MISSING
        )
    end = ending(path)
    if end not in ENDINGS[dataset_type]:
        expected = " or ".join(
            "a folder of images" if e == FOLDER else e for e in ENDINGS[dataset_type]
        )
        raise ConfigError(
            f"{path}: expected {expected} for {dataset_type.modality}", Fault.FORM
        )
    if end == FOLDER:
        return _pictures(path, input_shape)
    if dataset_type is TextDataset:
        return _texts(path)
    if dataset_type is InstructionDataset:
        return _instructions(path)
    samples = _numbers(path) if end == ".csv" else _arrays(path, dataset_type)
    shape = samples.x.shape[1:]
    if dataset_type is not ImageDataset and shape != input_shape:
        raise ConfigError(
            f"{path}: samples have shape {shape}, expected {input_shape}, which the "
            "model takes",
            Fault.SHAPE,
        )
    return samples


def count_samples(path: Path) -> int:
    """Count the samples of a file, or of a folder of images, without reading them."""
    end = ending(path)
    if end == FOLDER:
        return len(sample_files(path))
    if end == ".npz":
        return len(read_arrays(path, ("y",))[0]["y"])
    keys = () if has_instructions(path) else (LABEL,)
    return sum(1 for _ in read_rows(path, keys))


def _coded(labels: Sequence[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    names = tuple(sorted(set(labels)))
    codes = {name: code for code, name in enumerate(names)}
    return names, np.array([codes[label] for label in labels], np.int64)


def _texts(path: Path) -> FileSamples:
    lines, texts, labels = zip(*read_texts(path), strict=True)
    return FileSamples(str(path), texts, *_coded(labels), "line", lines)


def _instructions(path: Path) -> FileSamples:
    lines, samples = zip(*read_instructions(path), strict=True)
    labels = (CLASS,) * len(samples)
    return FileSamples(str(path), samples, *_coded(labels), "line", lines)


def _numbers(path: Path) -> FileSamples:
    """Read the numbers of all columns but ``label``, in the order of their names.

    So two files with the same columns agree, whatever the order of their columns.
    """
    # Cells become numbers at once, since texts would take ten times the memory.
    numbers, labels, lines = array("d"), [], array("q")
    columns: tuple[str, ...] = ()
    for line, row in read_rows(path, (LABEL,)):
        columns = columns or _features(row, f"{path}: line 1")
        labels.append(label_name(row[LABEL], f"{path}: line {line}: {LABEL}"))
        lines.append(line)
        numbers.extend(_cells(row, columns, f"{path}: line {line}"))
    if not columns:
        raise ConfigError(
            f"{path}: line 1 names no column but label, expected columns of numbers",
            Fault.COLUMNS,
        )
    x = _table(numbers, path, lines, columns)
    return FileSamples(str(path), x, *_coded(labels), "line", lines, columns)


_UNNAMED = re.compile(r"(Unnamed: \d+)?")
"""The names that pandas gives to the index column: when it writes, when it reads."""


def _features(row: Iterable[str], where: str) -> tuple[str, ...]:
    columns = tuple(sorted({*row} - {LABEL}))
    for name in columns:
        if _UNNAMED.fullmatch(name):
            raise ConfigError(
                f"{where} has a column {name!r}, as pandas writes the numbers of the "
                "rows, expected a name for what is learned from: remove the column "
                "(to_csv(index=False)), or give it a name",
                Fault.COLUMNS,
            )
    return columns


def _cells(row: Row, columns: Sequence[str], where: str) -> Iterator[float]:
    for name in columns:
        try:
            yield number(row[name])
        except (TypeError, ValueError) as error:
            expected = error if isinstance(error, ValueError) else "a number"
            raise ConfigError(
                f"{where}: {name} is {row[name]!r:.60}, expected {expected}", Fault.CELL
            ) from error


def _table(
    numbers: "array[float]", path: Path, lines: Sequence[int], columns: Sequence[str]
) -> npt.NDArray[np.float32]:
    cells = np.frombuffer(numbers, np.float64).reshape(len(lines), len(columns))
    with np.errstate(over="ignore"):  # such a cell is refused below
        x = cells.astype(np.float32)
    x.setflags(write=False)
    if not (finite := np.isfinite(x)).all():
        row_number, column = np.argwhere(~finite)[0]
        raise ConfigError(
            f"{path}: line {lines[row_number]}: {columns[column]} is no finite number "
            "of float32, expected one",
            Fault.CELL,
        )
    if equal := first_equal(cells, x):
        column, one, other = equal
        raise ConfigError(
            f"{path}: {columns[column]} is {one} and {other}, expected {DIGITS}",
            Fault.DIGITS,
        )
    return x


def _arrays(path: Path, dataset_type: type[Dataset]) -> FileSamples:
    arrays, names = read_arrays(path, ("x", "y"))
    split = array_split(
        dataset_type, arrays["x"], arrays["y"], f"{path}: x", f"{path}: y"
    )
    numbers, number_codes = np.unique(split.y, return_inverse=True)
    end = len(names) if names else np.inf
    for odd in numbers[(numbers < 0) | (numbers >= end)]:
        raise ConfigError(
            f"{path}: y has label {odd}, expected "
            + (f"0..{len(names) - 1}, the class_names." if names else "none below 0."),
            Fault.LABEL,
        )
    labels = [names[n] if names else str(n) for n in numbers.tolist()]
    label_names = [label_name(label, f"{path}: class_names: label") for label in labels]
    order, codes = _coded(label_names)
    rows = range(len(split.y))
    return FileSamples(
        str(path), split.x, order, codes[number_codes], "y at index", rows
    )


def _pictures(folder: Path, input_shape: tuple[int, ...]) -> FileSamples:
    """Read images in folders named by label, scaled bilinearly to the model's size."""
    files = sample_files(folder)
    if not files:
        raise ConfigError(
            f"{folder} is empty, expected folders of images, named by label",
            Fault.LAYOUT,
        )
    mode, size = _picture_form(input_shape)
    x: Images = np.empty(
        (len(files), *input_shape[1:], *[3] * (mode == "RGB")), np.uint8
    )
    for row, file in enumerate(files):
        image = read_picture(file, mode, size)
        if image.dtype != x.dtype:  # pictures of 8 bits and of more bits are mixed
            x, image = fractions(x) if x.dtype == np.uint8 else x, fractions(image)
        x[row] = image
    x.setflags(write=False)
    names = [file.parent.name for file in files]
    labels = [label_name(name, f"{folder / name}: label") for name in names]
    places = [f"{file.parent.name}/{file.name}" for file in files]
    return FileSamples(str(folder), x, *_coded(labels), "image", places)


def _picture_form(input_shape: tuple[int, ...]) -> tuple[Mode, tuple[int, int] | None]:
    channels, height, width = input_shape
    size = (width, height) if height or width else None
    return "L" if channels == 1 else "RGB", size


def empty_labels(path: Path) -> list[str]:
    """List the folders of a folder of images that are named by a label, but empty."""
    if not path.is_dir():
        return []
    return [label.name for label in visible(path) if not _images_in(label)]


def _images_in(label: Path) -> list[Path]:
    if not label.is_dir():
        kind = "a link to nothing" if label.is_symlink() else "a file"
        raise ConfigError(
            f"{label} is {kind}, expected a folder named by a label", Fault.LAYOUT
        )
    files = visible(label)
    for file in files:
        _check_picture(file)
    return files


def _check_picture(file: Path) -> None:
    if file.suffix.lower() not in PICTURES:
        raise ConfigError(
            f"{file} is no image, expected {', '.join(PICTURES)}", Fault.LAYOUT
        )


# ---- samples without labels

ROWS = (".csv", ".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True, eq=False)
class RawSamples:
    """The samples of a file or a folder for which a model is asked.

    Attributes:
        x: samples as in `FileSamples`; a list of arrays if images keep their sizes.
        names: name of each sample, such as ``new.csv:2`` for line 2.
        labels: label of each sample; empty if the file has no labels.
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
    """Read samples, which need no labels, from a file or a folder of images.

    A column ``label`` is read as labels, not as a feature.

    Args:
        path: a file, an image, or a folder with images in it or below.
        dataset_type: type of data set that the model takes.
        input_shape: input shape of the model; with 0 pixels images keep their size.
        columns: columns that a table has to have; empty takes the file's columns in its
            order.
        form: ending of a file that has none.
    """
    if not (form or path.exists()):
        raise ConfigError(f"{path} is missing, expected a file, or a folder of images")
    end = form or ending(path)
    picture = path.suffix.lower() in PICTURES
    allowed = {
        ImageDataset: (FOLDER, ".npz", *PICTURES),
        TimeSeriesDataset: (".npz",),
        TextDataset: ROWS,
        TabularDataset: (*ROWS, ".npz"),
        InstructionDataset: ROWS[1:],
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
        if dataset_type is InstructionDataset:
            return _raw_prompts(path, form)
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
        texts.append(checked_text(row[TEXT], f"{where}: {TEXT}"))
        names.append(f"{path}:{line}")
        labels.add(row, where)
    return RawSamples(tuple(texts), tuple(names), labels.all_or_none())


def _raw_prompts(path: Path, form: str) -> RawSamples:
    prompts, names = [], []
    for line, row in read_rows(path, (), form):
        prompts.append(prompt_of(row, f"{path}: line {line}"))
        names.append(f"{path}:{line}")
    return RawSamples(tuple(prompts), tuple(names))


def _raw_numbers(
    path: Path, input_shape: tuple[int, ...], columns: Sequence[str], form: str
) -> RawSamples:
    numbers, names, lines, labels = array("d"), [], array("q"), _Labels()
    for line, row in read_rows(path, columns, form):
        where = f"{path}: line {line}"
        if not columns:
            _features(row, where)
            columns = [name for name in row if name != LABEL]
        for name in row.keys() - {*columns, LABEL}:
            raise ConfigError(
                f"{where} has a column {name!r:.60} that the model does not know, "
                f"expected {', '.join(columns)}: remove it"
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
    return RawSamples(x, tuple(names), labels.all_or_none())


class _Labels:
    """The labels of a file's rows, which count only if all rows have one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._rows = 0

    def add(self, row: Row, where: str) -> None:
        self._rows += 1
        if row.get(LABEL) not in (None, ""):
            self._names.append(label_name(row[LABEL], f"{where}: {LABEL}"))

    def all_or_none(self) -> tuple[str, ...]:
        return tuple(self._names) if len(self._names) == self._rows else ()


def _raw_pictures(path: Path, input_shape: tuple[int, ...]) -> RawSamples:
    files = list(_below(path, ())) if path.is_dir() else [path]
    for file in files:
        _check_picture(file)
    if not files:
        raise ConfigError(f"{path} is empty, expected images, in it or below")
    x = [read_picture(file, *_picture_form(input_shape)) for file in files]
    return RawSamples(x, tuple(map(str, files)))


def _below(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield all files below a folder; links are followed unless they lead back up."""
    resolved = folder.resolve()
    for path in visible(folder) if resolved not in above else ():
        if path.is_dir():
            yield from _below(path, (*above, resolved))
        else:
            yield path
