"""Commands made of functions: signature and docstring declare each option once."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import click

Count: TypeAlias = Annotated[int, click.IntRange(min=0)]
AtLeastOne: TypeAlias = Annotated[int, click.IntRange(min=1)]
Port: TypeAlias = Annotated[int, click.IntRange(1, 65535)]
PortOrNone: TypeAlias = Annotated[int, click.IntRange(0, 65535)]
Folder: TypeAlias = Annotated[Path, "FOLDER"]
Name: TypeAlias = Annotated[str, "NAME"]
Address: TypeAlias = Annotated[str, "HOST:PORT"]

_OPTIONS = "\n\nOptions:\n"
_OPTION = re.compile(r"^    (\w+): (.+(?:\n     .+)*)", re.MULTILINE)


def command(function: Callable[..., None]) -> click.Command:
    """Make a command of a function.

    Keyword-only parameters become options, other parameters arguments. ``Options:`` in
    the docstring has a sentence for each option. A parameter whose type is a dataclass
    stands for the options in its fields. Parameters of decorators come first.
    """
    params: list[click.Parameter] = [*getattr(function, "__click_params__", [])[::-1]]
    taken = {param.name for param in params}
    groups: dict[str, Any] = {}
    text, sentences = _split(function)
    for name, param in inspect.signature(function).parameters.items():
        if is_dataclass(param.annotation):
            groups[name] = param.annotation
            params += _fields(param.annotation)
        elif param.kind is param.KEYWORD_ONLY:
            help_ = sentences.get(name, "")
            params.append(option(name, param.annotation, param.default, help_))
        elif param.kind is param.POSITIONAL_OR_KEYWORD and name not in taken:
            params.append(_argument(name, param.annotation, param.default))

    def call(**values: object) -> None:
        grouped = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        function(**values, **grouped)

    name = function.__name__.strip("_").replace("_", "-")
    return click.Command(name, callback=call, params=params, help=text)


def option(
    name: str, annotation: object, default: object, text: str = ""
) -> click.Option:
    """Make an option from the name, type and default of a parameter or a setting."""
    kind, attributes = _typed(annotation, multiple={"multiple": True})
    flag = f"--{name.strip('_').replace('_', '-')}"
    if kind is bool:
        if default is True:
            flag += f"/--no-{flag[2:]}"
        return click.Option([flag, name], is_flag=True, default=default, help=text)
    if default is Parameter.empty:
        attributes["required"] = True
    else:
        shown = default is not None and default != () and "[default" not in text
        attributes |= {"default": default, "show_default": shown}
    return click.Option([flag, name], help=text, **attributes)


def _split(documented: object) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text and the sentences for options."""
    text, _, below = (inspect.getdoc(documented) or "").partition(_OPTIONS)
    options = _OPTION.findall(below)
    return text, {name: " ".join(sentence.split()) for name, sentence in options}


def _fields(kind: Any) -> Iterator[click.Option]:  # noqa: ANN401
    for base in reversed(kind.__mro__[:-1]):
        _, sentences = _split(base)
        for field in fields(base):
            if field.name in sentences:
                default = field.default
                default = Parameter.empty if default is MISSING else default
                yield option(field.name, field.type, default, sentences[field.name])


def _argument(name: str, annotation: object, default: object) -> click.Argument:
    _, attributes = _typed(annotation, multiple={"nargs": -1})
    attributes.pop("metavar", None)
    required = default is Parameter.empty
    return click.Argument([name], required=required, **attributes)


def _typed(annotation: Any, multiple: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Find the type in an annotation, and click's attributes for it."""
    members = [part for part in get_args(annotation) if part is not type(None)]
    if type(None) in get_args(annotation):
        annotation = members[0]
    kind, attributes = annotation, dict[str, Any]()
    if get_origin(kind) is tuple:
        kind, attributes = members[0], {**multiple}
    attributes["type"] = kind
    if get_origin(kind) is Annotated:
        kind, extra = get_args(kind)
        key = "metavar" if isinstance(extra, str) else "type"
        attributes |= {"type": kind, key: extra}
    if kind is Path:
        attributes["type"] = click.Path(path_type=Path)
    elif get_origin(kind) is Literal:
        attributes["type"] = click.Choice(get_args(kind))
    return kind, attributes
