"""What a page consists of, as plain data: a section returns it, a template shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table or a tile, with what belongs to it.

    Attributes:
        text: shown.
        hint: shown under the pointer.
        lines: further lines in small type.
        colour: CSS colour of a swatch before the text.
        link: address relative to the page.
    """

    text: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    colour: str = ""
    link: str = ""


Value = str | Cell
Trace = dict[str, Any]
"""One of Plotly's, or a part of one."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Headline figures: each with its name, the figure and what it means."""

    kind: ClassVar = "tiles"
    entries: Sequence[tuple[str, Value, Value]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence set apart; its tone is ``good``, ``bad`` or neither."""

    kind: ClassVar = "verdict"
    sentence: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, which scrolls by itself when it is wider than the page.

    Attributes:
        head: names of the columns.
        rows: cells.
        name: for the style sheet.
        words: how many columns from the left hold words; the rest hold numbers.
        folded: what the reader clicks on to see it; empty where it is always seen.
    """

    kind: ClassVar = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[Value]]
    name: str = ""
    words: int = 1
    folded: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A line between tables and charts; ``verbatim`` for a command."""

    kind: ClassVar = "text"
    text: str
    verbatim: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, and the same numbers for those who do not see it.

    Attributes:
        what: description of the picture.
        traces: Plotly's, colours as ``var(--name)`` of the style sheet.
        layout: Plotly's, with a ``height`` in pixels.
        numbers: what is drawn, as a table.
        caption: shown below.
        width: in pixels, where the page is not narrower; 0 for all of the page.
    """

    kind: ClassVar = "chart"
    what: str
    traces: Sequence[Trace]
    layout: Trace
    numbers: Table
    caption: str = ""
    width: int = 0


@dataclass(frozen=True, slots=True)
class Charts:
    """Small charts side by side; ``name`` is for the style sheet."""

    kind: ClassVar = "charts"
    charts: Sequence[Chart]
    name: str = ""


Part = Table | Text | Chart | Charts


@dataclass(frozen=True, slots=True, init=False)
class Section:
    """A heading that says what one sees, a note that explains it, and the parts."""

    kind: ClassVar = "section"
    heading: str
    note: str
    parts: tuple[Part, ...]

    def __init__(self, heading: str, note: str, *parts: Part) -> None:
        object.__setattr__(self, "heading", heading)
        object.__setattr__(self, "note", note)
        object.__setattr__(self, "parts", parts)


Block = Tiles | Verdict | Section


def charts_of(blocks: Iterable[Block]) -> list[Chart]:
    """Return all charts in the order in which a page shows them."""
    found: list[Chart] = []
    for block in blocks:
        for part in block.parts if isinstance(block, Section) else ():
            found += part.charts if isinstance(part, Charts) else ()
            found += [part] if isinstance(part, Chart) else ()
    return found
