"""HTML and SVG built from values, so that no text can reach a page unescaped."""

import html
from collections.abc import Iterable

_VOID = frozenset({"meta", "br", "rect", "path", "line", "circle"})


class Markup(str):
    """Text that is markup already; any other string is escaped by `tag`."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return one element.

    Args:
        name: of the element.
        children: markup as it is, other text escaped.
        attributes: a trailing underscore is dropped (``class_``), an inner one becomes
            a hyphen (``stroke_width``), None leaves the attribute out, numbers are
            rounded to hundredths.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str], separator: str = "") -> Markup:
    """Return the parts one after the other, text escaped, markup as it is."""
    return Markup(separator.join(map(_escaped, parts)))


def number(value: float) -> str:
    """Return ``value`` for an SVG attribute: two decimals, no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(text)


def _attribute(value: str | float) -> str:
    return html.escape(value) if isinstance(value, str) else number(value)
