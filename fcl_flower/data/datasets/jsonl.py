"""Texts in files of one JSON object a line, alone or as a set in a folder."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.text import (
    TextDataset,
    label_numbers,
    text_dataset,
    text_split,
)

TRAIN = "train.jsonl.gz"
_TEST = "test.jsonl.gz"


def load_jsonl(name: str, folder: Path, field: str) -> TextDataset:
    """Return the data set in ``folder``; its classes are the sorted training labels.

    Args:
        name: what the set is called from now on.
        folder: holds ``train.jsonl.gz`` and ``test.jsonl.gz``: gzip, UTF-8, and on
            each line a JSON object with a text called ``text`` and a label.
        field: what the objects call the label, a text or a whole number.

    Raises:
        ConfigError: a file cannot be read or is empty, a line is not as described,
            or a test label never occurs in training.
    """
    train, test = (list(rows_of(folder / file, field)) for file in (TRAIN, _TEST))
    class_names = tuple(sorted({label for _, label in train}))
    train_split, test_split = (
        text_split(
            (text for text, _ in rows),
            label_numbers(
                (label for _, label in rows),
                class_names,
                f"{folder / file}: {field} in line",
            ),
        )
        for rows, file in ((train, TRAIN), (test, _TEST))
    )
    return text_dataset(name, str(folder), train_split, test_split, class_names)


def rows_of(path: Path, field: str) -> Iterator[tuple[str, str]]:
    """Yield text and label of each line.

    Args:
        path: of a file in UTF-8, with gzip where its name ends in ``.gz``.
        field: what the objects call the label, a text or a whole number.

    Raises:
        ConfigError: the file cannot be read or is empty, or a line is not a JSON
            object with a text and a label.
    """
    number = 0
    packed = path.suffix == ".gz"
    try:
        # Either is a stream of bytes, of different types.
        with cast(BinaryIO, gzip.open(path) if packed else path.open("rb")) as lines:
            for number, line in enumerate(lines, 1):
                yield _row(line, field, f"{path}: line {number}")
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path}: cannot be read after line {number} ({error}), expected "
            f"{'a gzip file with ' if packed else ''}one JSON object a line"
        ) from error
    if not number:
        raise ConfigError(f"{path} is empty, expected one JSON object a line")


def _row(line: bytes, field: str, where: str) -> tuple[str, str]:
    """Return text and label of one line."""
    try:
        row = json.loads(line.decode())
    # ValueError is bad UTF-8, bad JSON or an endless number; then brackets in brackets.
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where} cannot be read ({error}), expected a JSON object in UTF-8"
        ) from error
    if not isinstance(row, dict):
        raise ConfigError(
            f"{where} is a {type(row).__name__}, expected a JSON object with the keys "
            f"text and {field}"
        )
    text = _value(row, "text", where)
    if not isinstance(text, str):
        raise ConfigError(f"{where}: text is {text!r:.60}, expected a text")
    label = _value(row, field, where)
    # True is a whole number to Python, and class names have to be printed.
    name = str(label) if type(label) in (str, int) else ""
    if not name or not name.isprintable():
        raise ConfigError(
            f"{where}: {field} is {label!r:.60}, expected a printable text or a whole "
            "number"
        )
    return text, name


def _value(row: dict[str, Any], key: str, where: str) -> Any:  # noqa: ANN401 - JSON
    """Return what a line says under ``key``."""
    if key not in row:
        raise ConfigError(
            f"{where}: got no {key}, but {', '.join(row) or 'nothing'}, expected "
            f"the key {key}"
        )
    return row[key]
