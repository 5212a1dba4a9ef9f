"""Commands made of functions: an option stands once, in signature and docstring."""

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

    Its keyword-only parameters are options, all others arguments. ``Options:`` in the
    docstring has a sentence for each. A parameter of a dataclass stands for the options
    that are its fields. What decorators have given the function comes first.
    """
    params: list[click.Parameter] = [*getattr(function, "__click_params__", [])[::-1]]
    taken = {one.name for one in params}
    groups: dict[str, Any] = {}
    text, sentences = _split(function)
    for name, one in inspect.signature(function).parameters.items():
        if is_dataclass(one.annotation):
            groups[name] = one.annotation
            params += _fields(one.annotation)
        elif one.kind is one.KEYWORD_ONLY:
            help_ = sentences.get(name, "")
            params.append(option(name, one.annotation, one.default, help_))
        elif one.kind is one.POSITIONAL_OR_KEYWORD and name not in taken:
            params.append(_argument(name, one.annotation, one.default))

    def call(**values: object) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        function(**values, **made)

    name = function.__name__.strip("_").replace("_", "-")
    return click.Command(name, callback=call, params=params, help=text)


def option(
    name: str, annotation: object, default: object, text: str = ""
) -> click.Option:
    """Make an option of a parameter's or a setting's name, type and default."""
    kind, given = _typed(annotation, multiple={"multiple": True})
    flag = f"--{name.strip('_').replace('_', '-')}"
    if kind is bool:
        if default is True:
            flag += f"/--no-{flag[2:]}"
        return click.Option([flag, name], is_flag=True, default=default, help=text)
    if default is Parameter.empty:
        given["required"] = True
    else:
        shown = default is not None and default != () and "[default" not in text
        given |= {"default": default, "show_default": shown}
    return click.Option([flag, name], help=text, **given)


def _split(documented: object) -> tuple[str, dict[str, str]]:
    """Split a docstring from its sentences for options."""
    text, _, below = (inspect.getdoc(documented) or "").partition(_OPTIONS)
    return text, {name: " ".join(said.split()) for name, said in _OPTION.findall(below)}


def _fields(kind: Any) -> Iterator[click.Option]:  # noqa: ANN401
    for base in reversed(kind.__mro__[:-1]):
        _, sentences = _split(base)
        for field in fields(base):
            if field.name in sentences:
                default = field.default
                default = Parameter.empty if default is MISSING else default
                yield option(field.name, field.type, default, sentences[field.name])


def _argument(name: str, annotation: object, default: object) -> click.Argument:
    _, given = _typed(annotation, multiple={"nargs": -1})
    given.pop("metavar", None)
    return click.Argument([name], required=default is Parameter.empty, **given)


def _typed(annotation: Any, multiple: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """Find a type, and what click is told of it."""
    options = [one for one in get_args(annotation) if one is not type(None)]
    if type(None) in get_args(annotation):
        annotation = options[0]
    kind, given = annotation, dict[str, Any]()
    if get_origin(kind) is tuple:
        kind, given = options[0], {**multiple}
    given["type"] = kind
    if get_origin(kind) is Annotated:
        kind, extra = get_args(kind)
        given |= {"type": kind, "metavar" if isinstance(extra, str) else "type": extra}
    if kind is Path:
        given["type"] = click.Path(path_type=Path)
    elif get_origin(kind) is Literal:
        given["type"] = click.Choice(get_args(kind))
    return kind, given
