"""What there is to say about each setting: type, range, default and one sentence."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_SIGNS = {"Ge": ">=", "Gt": ">", "Le": "<=", "Lt": "<"}
"""What stands for the bounds that pydantic keeps as metadata, by their class."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section, or one parameter of what a section names.

    Attributes:
        key: its name.
        type: ``int``, ``float``, ``bool``, ``text``, or the values that it may have.
        range: bounds, such as ``> 0, <= 1``; empty for none.
        default: as TOML would have it, for people.
        help: one sentence.
    """

    key: str
    type: str
    range: str
    default: str
    help: str


def describe(
    kind: type[BaseModel], presets: Mapping[str, object] = MappingProxyType({})
) -> list[Setting]:
    """Return the settings of a section, or the parameters of a thing, in order.

    Args:
        kind: their model.
        presets: defaults in the place of the model's.
    """
    documented = dict(_attributes(kind))
    return [
        Setting(
            key=name,
            type=_type(field.annotation),
            range=", ".join(_bounds(field)),
            default=_shown(presets[name]) if name in presets else _default(field),
            help=" ".join(
                (field.description or documented.get(name, ""))
                .replace("``", "")
                .split()
            ),
        )
        for name, field in kind.model_fields.items()
        if name != "params"
    ]


def _type(annotation: Any) -> str:  # noqa: ANN401
    if get_origin(annotation) is Literal:
        return " | ".join(str(value) or "''" for value in get_args(annotation))
    if annotation is str:
        return "text"
    return getattr(annotation, "__name__", str(annotation))


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        name = type(bound).__name__
        if name in _SIGNS:
            yield f"{_SIGNS[name]} {getattr(bound, name.lower())}"


def _default(field: FieldInfo) -> str:
    """Return the default; empty where a value is required."""
    if field.is_required():
        return ""
    return _shown(field.get_default(call_default_factory=True))


def _shown(value: object) -> str:
    """Return a value as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "''"


def _attributes(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield name and sentence of what a class's docstring, or a base's, lists."""
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, listed = text.partition("Attributes:\n")
        for match in _ENTRY.finditer(listed):
            yield match[1], match[2]
