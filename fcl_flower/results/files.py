"""The JSON files of a run's folder, read by a schema and replaced as a whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.files import replace_file

T = TypeVar("T")


def read_as(schema: type[T], path: Path, parse: Callable[[Path], object]) -> T:
    """Read a file by its schema.

    Raises:
        ConfigError: the content is another; the message names file and key.
    """
    try:
        return TypeAdapter(schema).validate_python(parse(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole"
        shown = "nothing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise ConfigError(f"{path}: {key}: got {shown}: {first['msg']}") from error


def json_value(path: Path) -> object:
    """Read a JSON file."""
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON") from error


def json_lines(path: Path) -> list[object]:
    """Read a file with a JSON value a line."""
    try:
        return [json.loads(line) for line in _text(path).split("\n") if line.strip()]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: got {error}, expected JSON lines") from error


def write_json(path: Path, content: object) -> None:
    """Replace a file in one step: a reader sees the old content or the new."""
    replace_file(path, json.dumps(content, indent=1) + "\n")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: got {error}, expected a file of a run") from error
