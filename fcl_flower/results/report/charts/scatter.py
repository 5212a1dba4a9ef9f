"""A map of numbered points, the same scale in both directions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fcl_flower.results.report.charts.traces import category_colour, hints, trace
from fcl_flower.results.report.html.content import Chart, Table, Trace


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a map.

    Attributes:
        position: its two coordinates.
        number: written in it.
        category: what its colour stands for; below 0: none.
        hint: text shown under the pointer.
    """

    position: tuple[float, float]
    number: int
    category: int
    hint: str


def scatter(
    points: Sequence[Point], name: Callable[[int], str], what: str, caption: str
) -> Chart:
    """Return the points; the axes have no meaning but their scale.

    Args:
        points: at least one.
        name: the name of a category.
        what: description of the picture.
        caption: shown below.
    """
    categories = sorted({point.category for point in points})
    axis = {"zeroline": False, "scaleanchor": "x"}
    rows = [[p.hint, *(f"{value:.3g}" for value in p.position)] for p in points]
    return Chart(
        what,
        [
            _cluster([p for p in points if p.category == category], name(category))
            for category in categories
        ],
        {"height": 440, "showlegend": True, "yaxis": axis},
        Table(["client", "x", "y"], rows),
        caption,
    )


def _cluster(members: Sequence[Point], name: str) -> Trace:
    category = members[0].category
    return trace(
        "scatter",
        mode="markers+text",
        name=name,
        x=[point.position[0] for point in members],
        y=[point.position[1] for point in members],
        text=[str(point.number) for point in members],
        textfont={"color": "var(--ink)" if category < 0 else "var(--paper)"},
        marker={
            "size": 18,
            "color": category_colour(category),
            "line": {"width": 1, "color": "var(--muted)"},
        },
        **hints(point.hint for point in members),
    )
