"""What the page's style sheet and Plotly's texts are to Matplotlib."""

import html
import re

from fcl_flower.results.report.html.style import STYLE

_LIGHT = dict(
    re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", STYLE.partition("@media")[0])
)


def css(colour: str) -> str:
    """Return a colour of a chart as a number, ``var(--name)`` in its light form."""
    name = re.fullmatch(r"var\(--([a-z0-9]+)\)", colour)
    return colour if name is None else _LIGHT[name[1]]


def flat(text: str) -> str:
    """Return a text of a chart as plain text: Plotly's is HTML.

    A dollar would start a formula, which a name is not.
    """
    return html.unescape(text.replace("<br>", "\n")).replace("$", r"\$")
