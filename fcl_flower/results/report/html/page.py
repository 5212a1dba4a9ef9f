"""Makes a page, which is one file, from its content.

Plotly is put into the page compressed: 2.0 MB instead of 4.8, and nothing is loaded.
"""

import base64
import gzip
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fcl_flower.results.report.html.content import Block, charts_of
from fcl_flower.results.report.html.script import FOLLOWING, SCRIPT
from fcl_flower.results.report.html.style import STYLE
from fcl_flower.results.report.html.template import TEMPLATE


def page(
    title: str,
    subtitle: str,
    body: Iterable[Block],
    sources: str,
    *,
    live: bool = False,
) -> str:
    """Return one page.

    Args:
        title: heading and title of the window.
        subtitle: the line above the heading.
        body: what follows the heading.
        sources: which files the page was made of, for its last line.
        live: it asks the server that it comes from for itself again and again, until it
            gets one that is not live. Others ask nobody for anything.
    """
    # Here, since who only serves a round needs no templates.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # What is no number would leave a picture empty without a word.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    blocks = [*body]
    charts = charts_of(blocks)
    return environment.from_string(TEMPLATE).render(
        title=title,
        subtitle=subtitle,
        blocks=blocks,
        sources=sources,
        style=STYLE,
        script=SCRIPT,
        figures=[
            {"what": one.what, "data": one.traces, "layout": one.layout}
            for one in charts
        ],
        library=_library() if charts or live else "",
        following=FOLLOWING if live else "",
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page, of which only its file is needed; return ``path``.

    Args:
        path: of the HTML file; its folder is made if it does not exist.
        text: the page.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


@cache
def _library() -> str:
    """Return Plotly's JavaScript, compressed by gzip and in base 64."""
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), mtime=0)
    return base64.b64encode(packed).decode()
