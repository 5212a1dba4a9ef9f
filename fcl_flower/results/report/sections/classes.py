"""The section on classes: how well each is known, whoever has it."""

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Section, Table
from fcl_flower.results.report.schema import ClassResult, Summary

_OPEN = 20
"""Classes up to which their table is shown without a click."""


def classes_section(summary: Summary) -> Section:
    """Return a table of all classes, those that are known worst first."""
    found = sorted(summary.per_class, key=lambda one: (one.recall, one.name))
    worst, best = found[0], found[-1]
    heading = f"Class {best.name} is known best, at {best.recall:.3f}"
    if len(found) > 1:
        heading += f", class {worst.name} worst, at {worst.recall:.3f}"
    return Section(
        heading,
        "After the last task, over the test samples of all clients. Recall: fraction "
        "of a class's samples that were answered rightly; precision: fraction of its "
        "answers that were right; F1: the harmonic mean of the two.",
        Table(
            ["class", "tested", "recall", "precision", "F1"],
            [_row(one) for one in found],
            "classes",
            folded="Show every class" if len(found) > _OPEN else "",
        ),
    )


def _row(one: ClassResult) -> list[str]:
    shares = (one.recall, one.precision, one.f1)
    return [one.name, f"{one.tested:,}", *map(numbers.fraction, shares)]
