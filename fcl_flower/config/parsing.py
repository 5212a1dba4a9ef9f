"""Text and TOML <-> checked values: one clear sentence where something is wrong."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fcl_flower.core.errors import ConfigError

P = TypeVar("P", bound=BaseModel)


def hyphenated(name: str) -> str:
    """Return the key of a field."""
    return name.replace("_", "-")


def toml(value: bool | int | float | str) -> str:
    """Return a scalar as TOML text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one character that only TOML refuses.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def read_toml(path: Path, key: str) -> dict[str, Any]:
    """Return what a TOML file holds.

    Args:
        path: of the file.
        key: what the user gave it for, for the message of an error.

    Raises:
        ConfigError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{key}: {str(path)!r} is refused: expected a TOML file ({error})"
        ) from error


def inline(values: Mapping[str, bool | int | float | str]) -> str:
    """Return hyper-parameters as the inside of a TOML inline table."""
    return ", ".join(f"{key} = {toml(value)}" for key, value in values.items())


def settings(text: str) -> dict[str, Any]:
    """Return the algorithm's hyper-parameters that ``RunConfig.set`` holds.

    Raises:
        ConfigError: the text is not the inside of a TOML inline table.
    """
    try:
        found: dict[str, Any] = tomllib.loads(f"set = {{{text}}}")["set"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"set: {text!r} is refused: expected 'key = value, ...' in TOML ({error})"
        ) from error
    return found


def check_params(kind: type[P], values: Mapping[str, Any], where: str = "set") -> P:
    """Return ``values``, such as the hyper-parameters of one half, as a ``kind``.

    Args:
        kind: a pydantic model.
        values: by key.
        where: in front of the key in the message of an error.

    Raises:
        ConfigError: a value has the wrong type or lies out of range.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{where} {sentence(kind, error)}") from error


def sentence(kind: type[BaseModel], error: ValidationError) -> str:
    """Return the first complaint as one sentence with key, value, expectation."""
    first = error.errors()[0]
    key = hyphenated(".".join(str(part) for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(map(hyphenated, kind.model_fields)))
        return f"{key}: unknown key; expected one of {known}"
    if first["type"] == "missing":
        return f"{key}: missing; expected a value"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return message
    expected = message.removeprefix("Input should be ")
    return f"{key}: {first['input']!r} is refused: expected {expected}"
