"""The section of a comparison that sets the figures of all methods side by side."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.comparison.grouping import Entry, counterpart_of
from fcl_flower.results.report.comparison.runs import page_of
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Section, Table, Value

_MEASURES = {
    "accuracy": "average_accuracy",
    "before aggregation": "before_aggregation.average_accuracy",
    "forgetting": "forgetting",
    "backward transfer": "backward_transfer",
    "ARI": "concepts.ari",
    "effectiveness": "concepts.effectiveness",
}
"""Columns of the table, of which those that no run knows are left out."""


def side_by_side_section(rows: Sequence[Entry], folder: Path | None) -> Section:
    """Return a table with a row for each method.

    Args:
        rows: the runs by label.
        folder: of the page, from which links to the runs start; None for no links.
    """
    seeds = max(len(entry.runs) for entry in rows)
    mean = numbers.mean_over(rows[0].runs[0].summary.clients, "client")
    note = f"Accuracies are {mean} at the end of the run"
    note += (
        ", mean ± standard deviation over seeds; sizes and times are means over seeds."
        if seeds > 1
        else "; of a single seed, so that no deviation is known."
    )
    known = {
        title: key
        for title, key in _MEASURES.items()
        if not all(np.isnan(_values(entry, key)).all() for entry in rows)
    }
    gains = {entry.label: _gains(entry, rows) for entry in rows}
    paired = any(len(gain) for gain in gains.values())
    if paired:
        note += " Transfer gain: accuracy minus that of the local-only counterpart."
    if "before aggregation" in known:
        note += " Before aggregation: of what each client has trained itself."
    if "ARI" in known:
        note += (
            " ARI: adjusted Rand index of the server's clusters against the hidden "
            "concepts, mean over rounds. Effectiveness: fraction of the updates that "
            "went into the concept model which they had started from."
        )
    hidden = {entry.label: entry.runs[0].summary.hidden for entry in rows}
    if given := [label for label, how in hidden.items() if how and how.reveal_ids]:
        note += f" Concept ids given to clients and server: {', '.join(given)}."
    best = max(rows, key=lambda entry: np.nan_to_num(_mean(entry, "average_accuracy")))
    final = numbers.fraction(_mean(best, "average_accuracy"))
    head = [*known, *(["transfer gain"] if paired else [])]
    return Section(
        f"{best.label} ends with the highest accuracy: {final}"
        if len(rows) > 1
        else f"{best.label} ends with an accuracy of {final}",
        note,
        Table(
            ["method", *head, "bytes up", "bytes down", "model size", "time"],
            [
                [
                    Cell(
                        entry.label,
                        colour=entry.colour,
                        link=page_of(entry.runs[0], folder),
                    ),
                    *(_measure(_values(entry, key)) for key in known.values()),
                    *([_measure(gains[entry.label], "+")] if paired else []),
                    *_costs(entry),
                ]
                for entry in rows
            ],
            "methods",
        ),
    )


def _costs(entry: Entry) -> list[Value]:
    return [
        numbers.size_exact(_mean(entry, "bytes_up")),
        numbers.size_exact(_mean(entry, "bytes_down")),
        numbers.size_exact(_mean(entry, "model_bytes")),
        numbers.duration(_mean(entry, "seconds")),
    ]


def _gains(entry: Entry, rows: Sequence[Entry]) -> Accuracy:
    """Return the gain in average accuracy for each seed that both runs have."""
    other = counterpart_of(entry, rows)
    if other is None:
        return np.empty(0)
    alone = {run.summary.seed: run.summary.average_accuracy for run in other.runs}
    pairs = [
        (run.summary.average_accuracy, alone[run.summary.seed])
        for run in entry.runs
        if run.summary.seed in alone
    ]
    found = np.array(pairs, np.float64).reshape(-1, 2)
    return np.asarray(found[:, 0] - found[:, 1])


def _values(entry: Entry, key: str) -> Accuracy:
    """Return one figure of the summary for each seed, NaN where it is null."""
    return np.array([attrgetter(key)(run.summary) for run in entry.runs], np.float64)


def _mean(entry: Entry, key: str) -> float:
    return float(metrics.mean_measured(_values(entry, key), axis=0))


def _measure(values: Accuracy, sign: str = "") -> str:
    if not len(values):
        return ""
    mean = float(metrics.mean_measured(values, axis=0))
    told = numbers.signed(mean) if sign else numbers.fraction(mean)
    return numbers.with_spread(told, float(metrics.spread_measured(values, axis=0)))
