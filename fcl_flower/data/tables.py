"""Readers of files that may be broken: CSV, JSON lines, and NumPy archives."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, Fault

LABEL = "label"
TEXT = "text"

Row: TypeAlias = Mapping[str, Any]
"""A row's cells by column: texts in CSV, any value in JSON."""


def read_rows(
    path: Path, keys: Sequence[str], form: str = ""
) -> Iterator[tuple[int, Row]]:
    """Yield the number of the line and the cells of each row.

    The first line of a ``.csv`` file names the columns, which have to include ``keys``.
    Other files have a JSON object on each line, and gzip if the name ends in ``.gz``.
    Empty lines do not count. All are UTF-8, with or without a byte order mark. ``form``
    stands for the ending of a file that has none.
    """
    if (form or path.suffix) == ".csv":
        rows, expected = _csv_rows(path, keys), "comma-separated values in UTF-8"
    else:
        gzipped = "a gzip file with " if path.suffix == ".gz" else ""
        rows, expected = _json_rows(path, keys), f"{gzipped}one JSON object a line"
    line = 0
    try:
        for line, row in rows:
            yield line, row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        hint = ""
        if isinstance(error, UnicodeDecodeError):
            hint, line = _encoding(error), _lines_before_error(path) or line
        raise ConfigError(
            f"{path}: cannot be read after line {line} ({error}), expected {expected}"
            f"{hint}",
            Fault.UNREADABLE,
        ) from error
    if not line:
        raise ConfigError(
            f"{path} has no samples, expected {expected}", Fault.UNREADABLE
        )


def _encoding(error: UnicodeDecodeError) -> str:
    """Write how to convert bytes that are no UTF-8."""
    guess = "UTF-16" if error.object[:2] in _UTF_16 else "Windows-1252 or Latin-1"
    code = guess.partition(" ")[0].upper()
    return f"; if it is {guess}, convert it: iconv -f {code} -t UTF-8"


def _lines_before_error(path: Path) -> int:
    """Count the lines before the first byte that is no UTF-8; 0 for standard input."""
    # The reader decodes far ahead of its current row, so its line number is too small.
    try:
        (path.read_bytes() if path.is_file() else b"").decode()
    except UnicodeDecodeError as error:
        return error.object.count(b"\n", 0, error.start)
    return 0


_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST_CELL = 2**31 - 1
"""The largest number of characters of a cell that the csv module takes everywhere."""


def _csv_rows(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, Row]]:
    # The csv module's default limit is 131,072 characters, too few for some texts.
    csv.field_size_limit(_LONGEST_CELL)
    # Spreadsheets write a byte order mark, which does not belong to the first name.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        if not header:
            raise ConfigError(
                f"{path}: line 1 is empty, expected the names of the columns",
                Fault.UNREADABLE,
            )
        if len(header) > 1 and not header[-1]:
            raise ConfigError(
                f"{path}: line 1 ends with a comma, expected the name of a column "
                "there: name the last column, or remove the comma from all lines",
                Fault.COLUMNS,
            )
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ConfigError(
                f"{path}: line 1 names column {twice!r} twice, expected other names",
                Fault.COLUMNS,
            )
        _check_keys(header, keys, f"{path}: line 1")
        line = reader.line_num + 1
        for cells in reader:
            if cells and len(cells) != len(header):
                raise ConfigError(
                    f"{path}: line {line} has {len(cells)} cells, expected "
                    f"{len(header)}, one for each column",
                    Fault.UNREADABLE,
                )
            if cells:
                yield line, dict(zip(header, cells, strict=True))
            # A quoted cell may span several lines.
            line = reader.line_num + 1


def _check_keys(row: Sequence[str], keys: Sequence[str], where: str) -> None:
    for key in keys:
        if key not in row:
            hint = ""
            for sign, name in ((";", "semicolons"), ("\t", "tabs")):
                if len(row) == 1 and sign in row[0]:
                    hint = f"; the columns are separated by {name}, expected commas"
            raise ConfigError(
                f"{where} has no {key}, but {', '.join(map(repr, row)) or 'nothing'}, "
                f"expected it{hint}",
                Fault.COLUMNS,
            )


def _json_rows(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, Row]]:
    with open_binary(path) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path}: line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                row = json.loads(text, object_pairs_hook=_once)
            # ValueError: bad UTF-8, bad JSON or too long a number. RecursionError:
            # deeply nested brackets.
            except (ValueError, RecursionError) as error:
                hint = _encoding(error) if isinstance(error, UnicodeDecodeError) else ""
                raise ConfigError(
                    f"{where} cannot be read ({error}), expected a JSON object in UTF-8"
                    f"{hint}",
                    Fault.UNREADABLE,
                ) from error
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{where} is a {type(row).__name__}, expected a JSON object with "
                    f"the keys {' and '.join(keys)}",
                    Fault.UNREADABLE,
                )
            _check_keys(list(row), keys, where)
            yield number, row


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, each of whose keys is there once."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return row


def open_binary(path: Path) -> BinaryIO:
    """Open a file to read, through gzip if its name ends in ``.gz``."""
    # Both are streams of bytes, but of different types.
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def read_texts(path: Path, field: str = LABEL) -> Iterator[tuple[int, str, str]]:
    """Yield line, text and label of each row, as `read_rows` does."""
    for line, row in read_rows(path, (TEXT, field)):
        text = checked_text(row[TEXT], f"{path}: line {line}: {TEXT}")
        yield line, text, label_name(row[field], f"{path}: line {line}: {field}")


def checked_text(value: object, where: str) -> str:
    """Return a value if it is a text of whole characters; refuse it otherwise."""
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {value!r:.60}, expected a text")
    # JSON can escape half a character, which no tokenizer takes.
    if half := _HALF.search(value):
        raise ConfigError(
            f"{where} has {half[0]!r}, half a character (a surrogate), at place "
            f"{half.start()}, expected whole ones: remove it"
        )
    return value


_HALF = re.compile("[\ud800-\udfff]")


def number(value: Any) -> float:  # noqa: ANN401 - a cell of JSON may be anything
    """Convert a cell to a number, written in the digits 0 to 9 with a decimal point.

    Raises:
        ValueError: the text is no number; the message says what was expected.
        TypeError: the cell is another value of JSON.
    """
    # float() also takes 1_000 and the digits of all scripts.
    if not isinstance(value, str) or (value.isascii() and "_" not in value):
        try:
            return float(value)
        except ValueError:
            pass
    if not value:
        raise ValueError("a number: fill in what is missing, or leave the row out")
    if _THOUSANDS.fullmatch(value.strip()):
        raise ValueError(
            "a number without a comma: 1234 if it parts thousands, 1.234 if decimals"
        )
    if _DECIMAL_COMMA.fullmatch(value.strip()):
        raise ValueError("a number with a decimal point, not a comma")
    if _OTHER_DIGITS.fullmatch(value.strip()):
        raise ValueError("a number in the digits 0 to 9, with nothing between them")
    raise ValueError("a number")


_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_OTHER_DIGITS = re.compile(r"[+-]?[\d_]+(\.[\d_]*)?")


def label_name(value: object, where: str) -> str:
    """Convert a label, a printable text or a whole number, to the name of a class."""
    # Python takes True for a whole number, so the exact type is compared.
    name = str(value) if type(value) in (str, int) else ""
    if not name or not name.isprintable():
        raise ConfigError(
            f"{where} is {value!r:.60}, expected a printable text or a whole number",
            Fault.NO_LABEL,
        )
    return name


def read_arrays(
    path: Path, keys: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], tuple[str, ...]]:
    """Read arrays and ``class_names`` of an ``.npz`` file without unpickling."""
    try:
        # The file is opened here, because np.load leaves a damaged file open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            names = {*keys, "class_names"} & {*file.files}
            arrays = {key: file[key] for key in names}
    # A damaged file makes zipfile, zlib and NumPy raise a dozen unrelated types.
    except Exception as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}), expected an .npz file of plain arrays",
            Fault.UNREADABLE,
        ) from error
    for key in keys:
        if key not in arrays:
            raise ConfigError(
                f"{path}: got no array {key}, expected {', '.join(keys)}",
                Fault.UNREADABLE,
            )
    class_names = arrays.pop("class_names", np.empty(0, str))
    if class_names.ndim != 1 or class_names.dtype.kind != "U":
        raise ConfigError(
            f"{path}: class_names has shape {class_names.shape} and dtype "
            f"{class_names.dtype}, expected one text for each class"
        )
    return arrays, different(class_names.tolist(), path)


def different(names: Sequence[object], where: object) -> tuple[str, ...]:
    """Convert labels to names of classes, which have to differ from each other.

    ``where`` says whose they are in an error.
    """
    texts = list[str]()
    for name in names:
        plain = name.item() if isinstance(name, np.generic) else name
        text = label_name(plain, f"{where}: class_names: label")
        if text in texts:
            raise ConfigError(
                f"{where}: class_names has {text!r:.60} twice, expected different names"
            )
        texts.append(text)
    return tuple(texts)
