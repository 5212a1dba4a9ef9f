"""The section on selection: which finished tasks each new task had to choose from.

Selective inter-client transfer (FedSeIT, Chaudhary et al., Findings of EMNLP 2022,
section 2.3) scores the overlap of a new task with every finished task of the other
clients, and sends the adapters of the best.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Part, Section, Table, Text
from fcl_flower.results.report.schema import Candidate, Overlap
from fcl_flower.results.report.sections.adapters.matrix import (
    Pair,
    Wording,
    adapter_matrix,
)

LISTED = 60
"""Rows up to which the table of choices is complete."""

BY_TASK = Wording(
    "new task (client/task)",
    "finished task (client/task)",
    "Overlap of each new task with the finished tasks of other clients",
    "Overlap of the new task with each finished task of the other clients, as the "
    "server scored it. A dot: chosen, that is, the client used its adapter. An empty "
    "cell: not a candidate.",
)
BY_CLIENT = Wording(
    "whose new tasks (client)",
    "whose finished tasks (client)",
    "Mean overlap of each client's new tasks with each other client's old ones",
    "Mean overlap over all pairs of a new and a finished task: there are too many to "
    "show each. An empty cell: no such pair was compared.",
)


def overlap_section(overlap: Sequence[Overlap]) -> Section:
    """Return overlaps and choices as a heat map and a table.

    The map has a cell for each candidate, or for each pair of clients where there are
    too many candidates to tell apart.
    """
    entries = [entry for entry in overlap if entry.candidates]
    if not entries:
        return Section(
            "No task had a candidate",
            "The strategy compares tasks, but no other client had finished one.",
        )
    picture, note = adapter_matrix(
        [_cell(entry, one) for entry in entries for one in entry.candidates],
        BY_TASK,
        BY_CLIENT,
        _client_hint,
        _limits,
    )
    return Section(_finding(entries), note, picture, *_choices(entries))


def _finding(entries: Sequence[Overlap]) -> str:
    """Return whether the chosen tasks share more classes than those left out."""
    if not any(c.chosen for e in entries for c in e.candidates):
        return "No candidate was chosen"
    selective = [e for e in entries if len({c.chosen for c in e.candidates}) == 2]
    if not selective:
        some_without = any(not c.chosen for e in entries for c in e.candidates)
        end = ", or none" if some_without else ""
        return f"There was nothing to choose: each task got all its candidates{end}"
    offered = [c for e in selective for c in e.candidates]
    chosen = [c for c in offered if c.chosen]
    others = [c for c in offered if not c.chosen]
    if not any(c.same_classes for c in offered):
        first, second = (
            numbers.fraction(float(np.mean([c.overlap for c in group])))
            for group in (chosen, others)
        )
        unknown = offered[0].same_classes is None
        start = (
            "Chosen candidates have"
            if unknown
            else "No candidate shares a class with the new task; chosen ones have"
        )
        return (
            f"{start} an overlap of {first} (mean of {len(chosen):,}), the others of "
            f"{second} (mean of {len(others):,})"
        )
    first, second = (
        f"{np.mean([c.same_classes or 0 for c in group]):.2f}"
        for group in (chosen, others)
    )
    if first == second:
        compared = "as many of the new task's classes as"
    else:
        more = "more" if float(first) > float(second) else "fewer"
        compared = f"{more} of the new task's classes than"
    return (
        f"Chosen tasks share {compared} the others: {first} "
        f"(mean of {len(chosen):,}) against {second} (mean of {len(others):,})"
    )


def _cell(entry: Overlap, candidate: Candidate) -> Pair:
    return Pair(
        (entry.client, entry.task),
        (candidate.client, candidate.task),
        candidate.overlap,
        candidate.chosen,
        partial(_hint, entry, candidate),
    )


def _hint(entry: Overlap, candidate: Candidate) -> str:
    shared = candidate.same_classes
    return (
        f"client {entry.client}, task {entry.task} ({entry.task_name}) and "
        f"client {candidate.client}, task {candidate.task} ({candidate.task_name}): "
        f"overlap {numbers.fraction(candidate.overlap)}, "
        + ("" if shared is None else f"{shared:.2f} of the classes shared, ")
        + ("chosen" if candidate.chosen else "not chosen")
    )


def _client_hint(client: int, other: int, mean: float, cells: Sequence[Pair]) -> str:
    return (
        f"client {client}, new tasks, and client {other}, finished ones: overlap "
        f"{numbers.fraction(mean)}, mean of {len(cells)}; "
        f"{sum(cell.marked for cell in cells)} chosen"
    )


def _limits(overlaps: Accuracy) -> tuple[float, float]:
    """Return the range from lowest to highest: overlaps lie close to each other."""
    low, high = float(np.nanmin(overlaps)), float(np.nanmax(overlaps))
    return low, high if high > low else low + 1


def _choices(entries: Sequence[Overlap]) -> list[Part]:
    """Return a table of what each task chose, and how many tasks it leaves out."""
    ordered = sorted(entries, key=lambda entry: (entry.client, entry.task))
    rows = [
        (
            str(entry.client),
            f"{entry.task}: {entry.task_name}",
            _chosen(entry),
            str(len(entry.candidates)),
        )
        for entry in ordered[:LISTED]
    ]
    head = ["client", "new task", "chosen, most overlap first", "candidates"]
    parts: list[Part] = [Table(head, rows, "choices", words=3)]
    left_out = len(ordered) - len(rows)
    if left_out:
        more = f"And {numbers.plural(left_out, 'more task')}: see overlap.json."
        parts.append(Text(more))
    return parts


def _chosen(entry: Overlap) -> Cell:
    chosen = sorted(
        (c for c in entry.candidates if c.chosen),
        key=lambda c: (-c.overlap, c.client, c.task),
    )
    lines = (
        f"{numbers.fraction(c.overlap)} client {c.client}, task {c.task}: {c.task_name}"
        for c in chosen
    )
    return Cell("" if chosen else "none", lines=tuple(lines))
