"""The frame of every page: head, style, sections and tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fcl_flower.results.report.html.markup import Markup, join, tag
from fcl_flower.results.report.html.style import STYLE

_COUNTING = (
    "Clients, tasks and concepts are counted from 0 and rounds from 1, as in the "
    "files of the run. Accuracies are fractions of the test examples; a dash stands "
    "for what was not measured. Rest the pointer on a picture or a size for the exact "
    "number."
)


def write_page(
    path: Path, title: str, subtitle: str, body: Iterable[Markup], sources: str
) -> Path:
    """Write one page and return ``path``.

    Args:
        path: of the HTML file; its folder is made if it does not exist.
        title: heading and title of the window.
        subtitle: the line above the heading.
        body: what follows the heading.
        sources: which files the page was made of, for its last line.
    """
    # The policy makes the browser refuse any request, whatever a label contains.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    content = tag(
        "body",
        tag("header", tag("p", subtitle), tag("h1", title)),
        *body,
        tag("footer", f"{_COUNTING} {sources}"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    document = tag("html", head, content, lang="en")
    path.write_text(f"<!DOCTYPE html>\n{document}\n", encoding="utf-8", newline="\n")
    return path


def section(heading: str, note: str, *content: str) -> Markup:
    """Return a section whose heading says what one sees and whose note explains it."""
    return tag("section", tag("h2", heading), tag("p", note), *content)


def verdict(sentence: str, tone: str = "") -> Markup:
    """Return a sentence set apart; ``tone`` is ``good``, ``bad`` or neither."""
    return tag("p", sentence, class_=f"verdict {tone}".strip())


def tiles(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Return headline figures: each with its name, the figure and what it means."""
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", name),
                tag("dd", figure, class_="figure"),
                tag("dd", meaning, class_="small"),
                class_="tile",
            )
            for name, figure, meaning in entries
        ),
        class_="tiles",
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    class_: str | None = None,
    words: int = 1,
) -> Markup:
    """Return a table that scrolls by itself when it is wider than the page.

    Args:
        head: names of the columns.
        rows: cells.
        class_: for the style sheet.
        words: how many columns from the left hold words; the rest hold numbers.
    """
    kinds = [None if i < words else "n" for i in range(len(head))]
    heading = (tag("th", h, class_=k) for h, k in zip(head, kinds, strict=True))
    body = (
        tag("tr", *(tag("td", c, class_=k) for c, k in zip(row, kinds, strict=True)))
        for row in rows
    )
    whole = tag(
        "table",
        tag("thead", tag("tr", *heading)),
        tag("tbody", *body),
        class_=class_,
    )
    return tag("div", whole, class_="wide")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Return names with their colours, (name, CSS colour)."""
    return tag(
        "ul",
        *(
            tag("li", join([tag("i", style=f"background:{colour}"), name]))
            for name, colour in entries
        ),
        class_="legend",
    )


def collapsed(name: str, content: Markup) -> Markup:
    """Return content that the reader opens with a click."""
    return tag("details", tag("summary", name), content)
