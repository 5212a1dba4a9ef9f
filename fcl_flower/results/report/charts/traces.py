"""What all charts share: names, colours and numbers as Plotly wants them."""

import html
import math
from collections.abc import Callable, Iterable

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.html.content import Trace

LONGEST = 30
"""Characters of a name beside a picture."""

_TASKS = np.array([[217, 150, 43], [42, 145, 136], [91, 111, 200]])
"""Red, green and blue of the first, the middle and the last task."""


def trace(kind: str, **settings: object) -> Trace:
    """Return one of Plotly's traces."""
    return {"type": kind, **settings}


def hints(texts: Iterable[str]) -> Trace:
    """Return the setting of a trace that shows a text for each point, and no more."""
    return {"hovertext": [*map(escaped, texts)], "hoverinfo": "text"}


def escaped(text: str) -> str:
    """Return a text as Plotly shows it: it would take ``<b>`` for a bold letter."""
    return html.escape(text, quote=False)


def short(name: str) -> str:
    """Return a name that fits beside a picture, with an ellipsis where it was cut."""
    whole = len(name) <= LONGEST
    return escaped(name if whole else f"{name[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}")


def known(values: Iterable[float]) -> list[float | None]:
    """Return values as JSON knows them: None for NaN, which leaves a gap."""
    return [None if math.isnan(value) else float(value) for value in values]


def table_of(values: Accuracy, show: Callable[[float], str]) -> list[list[str]]:
    """Return a matrix as text, nothing for NaN."""
    return [["" if np.isnan(v) else show(v) for v in row] for row in values]


def category_colour(category: int) -> str:
    """Return one of eight colours for things without an order, in turn.

    A number below 0 stands for nothing and has the palest colour.
    """
    return "var(--cold)" if category < 0 else f"var(--c{category % 8})"


def task_colour(task: int, tasks: int) -> str:
    """Return a colour between the first and the last task's, through a third one."""
    place = 2 * task / (tasks - 1) if tasks > 1 else 1.0
    mixed = [np.interp(place, [0, 1, 2], part) for part in _TASKS.T]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)
