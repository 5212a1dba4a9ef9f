"""A file of a run folder, checked by a schema; what is wrong names file and key."""

import csv
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from fcl_flower.core.errors import ConfigError

T = TypeVar("T")


def read_as(schema: TypeAdapter[T], path: Path, parse: Callable[[Path], object]) -> T:
    """Return a file's content by its schema.

    Raises:
        ConfigError: it is not what the schema asks for.
    """
    try:
        return schema.validate_python(parse(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole"
        shown = "nothing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise ConfigError(f"{path}: {key}: got {shown}: {first['msg']}") from error


def json_value(path: Path) -> object:
    """Return the content of a JSON file."""
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON") from error


def json_lines(path: Path, *, growing: bool = False) -> list[object]:
    """Return the content of a file with a JSON value a line.

    Args:
        path: of the file.
        growing: somebody writes to it, so that its last line may not be whole yet;
            then it is left out.
    """
    lines = _text(path, growing=growing).split("\n")
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON lines") from error


def csv_rows(path: Path, *, growing: bool = False) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column; ``growing`` as in `json_lines`."""
    return list(csv.DictReader(io.StringIO(_text(path, growing=growing))))


def require_below(path: Path, key: str, values: Iterable[int], limit: int) -> None:
    """Refuse numbers of a file that are not from 0 to below a limit."""
    for value in values:
        if not 0 <= value < limit:
            raise refused(path, key, value, f"a number from 0 to {limit - 1}")


def refused(path: Path, key: str, value: object, expected: str) -> ConfigError:
    """Return the error for a value of a file."""
    return ConfigError(f"{path}: {key}: got {value!r:.60}, expected {expected}")


def _text(path: Path, *, growing: bool = False) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        kind = "run" if growing else "finished run"
        raise ConfigError(
            f"{path}: got {error}, expected a text file of a {kind}"
        ) from error
    return text[: text.rfind("\n") + 1] if growing else text
