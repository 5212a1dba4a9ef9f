"""The section of a comparison on runs that have not finished."""

from collections.abc import Iterator, Sequence

from fcl_flower.results.report.comparison.grouping import Entry
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Section, Table, Value
from fcl_flower.results.report.reader import Run
from fcl_flower.results.report.schema import Progress
from fcl_flower.results.report.sections.under_way import time_left, where


def under_way_section(rows: Sequence[Entry]) -> Section:
    """Return a table with a row for each run.

    Args:
        rows: entries that are under way, at least one.
    """
    return Section(
        f"{numbers.plural(len(rows), 'run')} under way, in no mean and no gain below",
        "Accuracy so far: over the tasks tested last, "
        f"{numbers.mean_over(rows[0].runs[0].summary.clients, 'client')}; it is not "
        "final. Sizes are of finished rounds.",
        Table(
            ["run", "where", "accuracy so far", "bytes up", "bytes down", "left"],
            [*_rows(rows)],
            "under-way",
            words=2,
        ),
    )


def _rows(rows: Sequence[Entry]) -> Iterator[list[Value]]:
    for entry in rows:
        for run in entry.runs:
            if run.summary.progress is not None:
                yield _row(entry, run, run.summary.progress)


def _row(entry: Entry, run: Run, progress: Progress) -> list[Value]:
    summary = run.summary
    return [
        Cell(f"{summary.label} seed {summary.seed}", colour=entry.colour),
        where(progress),
        numbers.fraction(summary.average_accuracy),
        numbers.size_exact(summary.bytes_up),
        numbers.size_exact(summary.bytes_down),
        time_left(progress),
    ]
