"""Tables: files of comma-separated values with a column ``label``."""

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.local.samples import FileSamples, checked_label, coded

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
