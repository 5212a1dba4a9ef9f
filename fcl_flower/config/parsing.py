"""Conversion of text and TOML to checked values, with one sentence for each error."""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from typing_extensions import override

from fcl_flower.core.errors import ConfigError, as_set, config_error, unknown_name

P = TypeVar("P", bound=BaseModel)

Scalar: TypeAlias = bool | int | float | str
"""The types of a setting's value, which are those of Flower's run configuration."""

_PYDANTIC = re.compile(r"^\w+ should (be|have) | after validation, not \d+$")
"""The words of pydantic's messages around an expected value."""


def toml(value: Scalar) -> str:
    """Write a value as TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    # JSON escapes all characters that TOML escapes, except DEL.
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def read_toml(path: Path, key: str) -> dict[str, Any]:
    """Parse a TOML file, named by the setting ``key``."""
    content = b""
    try:
        content = path.read_bytes()
        return tomllib.loads(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = str(error)
        if isinstance(error, IsADirectoryError):
            why = "it is a folder"
        elif content.startswith((b"\xff\xfe", b"\xfe\xff")):
            why = "it is UTF-16, convert it: iconv -f UTF-16 -t UTF-8"
        raise config_error(key, str(path), f"a TOML file ({why})") from error


def parse_inline(text: str, key: str = "params") -> dict[str, Any]:
    """Parse the inside of a TOML inline table, ``key = value, ...``."""
    try:
        document = tomllib.loads(f"values = {{{text}}}")
    except tomllib.TOMLDecodeError as error:
        raise config_error(
            key, text, f"'key = value, ...' in TOML ({error})"
        ) from error
    if len(document) > 1:
        raise config_error(key, text, "'key = value, ...' in TOML")
    values: dict[str, Any] = document["values"]
    return values


def flatten(values: Mapping[str, object]) -> dict[str, object]:
    """Flatten nested mappings; dots join the keys, as in Flower."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{k}": v for k, v in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def validate_params(
    kind: type[P],
    values: Mapping[str, Any],
    where: str = "",
    beside: Iterable[str] = (),
) -> P:
    """Check values, such as an algorithm's hyper-parameters, and make a ``kind``.

    Args:
        kind: a pydantic model.
        values: values by key.
        where: text in front of a key in messages, such as ``strategy.``.
        beside: other known keys, for the message about an unknown key.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise first_complaint(kind, error, where, beside) from error


def first_complaint(
    kind: type[BaseModel],
    error: ValidationError,
    where: str = "",
    beside: Iterable[str] = (),
) -> ConfigError:
    """Convert the first error to one sentence with key, value and expectation."""
    first = error.errors()[0]
    loc = [*map(str, first["loc"])]
    if "params" in loc[:-1]:
        # Pydantic tries each member of the union, and names it behind the key.
        at = loc.index("params")
        value = first["input"]
        finite = not isinstance(value, float) or math.isfinite(value)
        expected = "a boolean, a number or text" if finite else "a finite number"
        return config_error(where + ".".join([*loc[:at], loc[at + 1]]), value, expected)
    *parents, leaf = ["", *loc]
    key = where + ".".join(part for part in [*parents, leaf] if part)
    if first["type"] == "extra_forbidden":
        section: Any = kind
        for part in filter(None, parents):
            section = section.model_fields[part].annotation
        names = {field.alias or name for name, field in section.model_fields.items()}
        return unknown_name(key, leaf, sorted({*names, *beside}))
    if first["type"] == "missing":
        return ConfigError(f"{key}: missing, expected a value")
    message = first["msg"].removeprefix("Value error, ")
    if not leaf:
        return ConfigError(message)
    return config_error(key, first["input"], _PYDANTIC.sub("", message))


class Frozen(BaseModel):
    """Settings that never change, and refuse unknown keys and values of other types.

    The text below a field is its sentence for ``fcl list NAME``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """A rule that settings count only where another setting has certain values.

    Attributes:
        keys: the settings by ``section.key``, separated by spaces.
        where: the other setting.
        values: its values with which they count; none for all but its off value.
    """

    keys: str
    where: str
    values: tuple[Scalar, ...] = ()

    def holds(self, settings: object) -> bool:
        """Tell whether the other setting has such a value.

        ``settings`` is its section, or the parameters of that.
        """
        value = getattr(settings, self.where.partition(".")[2])
        return value in self.values if self.values else bool(value)

    @override
    def __str__(self) -> str:
        values = " or ".join(map(as_set, self.values)) or "set"
        return f"unless {self.where} is {values}, without which it has no effect"


class Params(Frozen):
    """Parameters of a method, scenario or model, which are the fields of a subclass.

    A subclass lists in ``counts`` the parameters that count only where another one has
    certain values. Elsewhere a user who sets them is told so.
    """

    counts: ClassVar[Sequence["Counts"]] = ()

    @classmethod
    def rules(cls) -> Iterator[tuple[str, "Counts"]]:
        """Yield each parameter that counts only with another one, and its rule."""
        for kind in cls.mro():
            for rule in kind.__dict__.get("counts", ()):
                yield from ((key, rule) for key in rule.keys.split())

    @model_validator(mode="after")
    def _set_parameters_count(self) -> Self:
        for key, rule in self.rules():
            leaf = key.partition(".")[2]
            if leaf in self.model_fields_set and not rule.holds(self):
                wrong = config_error(key, getattr(self, leaf), f"none {rule}")
                raise ValueError(str(wrong))
        return self

    @property
    def needs_validation(self) -> bool:
        """Whether validation samples decide more than the learning rate."""
        return False

    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        """Warn a user of surprising effects of these settings, by topic.

        ``classes`` counts the logits of a head.
        """
        return {}


_SIGNS = {"Ge": ">=", "Gt": ">", "Le": "<=", "Lt": "<"}
"""The signs of the bounds in pydantic's metadata, by class."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a section, or a parameter of a method, scenario or model.

    Attributes:
        key: name of the setting.
        type: ``int``, ``float``, ``bool``, ``text``, or the allowed values.
        range: bounds, such as ``> 0, <= 1``; empty for none.
        default: default as in TOML, for people; empty for a required setting.
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
    """Describe the fields of a model in order; ``presets`` replace defaults."""
    return [
        Setting(
            key=name,
            type=_type(field.annotation),
            range=", ".join(_bounds(field)),
            default=_shown(presets[name]) if name in presets else _default(field),
            help=" ".join((field.description or "").replace("``", "").split()),
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
    if field.is_required():
        return ""
    return _shown(field.get_default(call_default_factory=True))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or "''"
