"""The section of a comparison on its runs: their pages, and how each was made."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from fcl_flower.results.report.comparison.grouping import Entry
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Section, Table, Value
from fcl_flower.results.report.reader import Run


def page_of(run: Run, folder: Path | None) -> str:
    """Return the address of a run's page from ``folder``; empty where it has none."""
    page = run.folder / "report.html"
    return quote(os.path.relpath(page, folder)) if folder and page.exists() else ""


def runs_section(rows: Sequence[Entry], folder: Path | None) -> Section:
    """Return a table with a row for each run.

    Args:
        rows: the runs by label.
        folder: of the page, from which links to the runs start; None for no links.
    """
    runs = [run for entry in rows for run in entry.runs]
    linked = all(page_of(run, folder) for run in runs)
    return Section(
        numbers.plural(len(runs), "run") + ", each with a page of its own" * linked,
        "How each run was made. A command runs the same again in the folder of its "
        "run.",
        Table(
            ["run", "seed", "model", "length", "command", "made"],
            [_row(run, folder) for run in runs],
            "runs",
            words=6,
        ),
    )


def _row(run: Run, folder: Path | None) -> list[Value]:
    summary = run.summary
    return [
        Cell(summary.label, link=page_of(run, folder), hint=str(run.folder.name)),
        str(summary.seed),
        summary.model,
        summary.steps,
        summary.command or numbers.UNKNOWN,
        summary.environment.told or numbers.UNKNOWN,
    ]
