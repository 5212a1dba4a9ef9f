"""The section of a comparison that sets the figures of all methods side by side."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.measures.forward_transfer import (
    ALIKE,
    Learned,
    forward_transfers,
)
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.comparison.grouping import Entry, counterpart_of
from fcl_flower.results.report.comparison.runs import page_of
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Section, Table, Value
from fcl_flower.results.report.reader import Run

_MEASURES = {
    "accuracy": "average_accuracy",
    "before aggregation": "before_aggregation.average_accuracy",
    "forgetting": "forgetting",
    "backward transfer": "backward_transfer",
    "balanced accuracy": "balanced_accuracy",
    "macro F1": "macro_f1",
    "ARI": "concepts.ari",
    "effectiveness": "concepts.effectiveness",
}
"""Columns of the table, of which those that no run knows are left out."""


_COSTS: Mapping[str, tuple[str, Callable[[float], Value]]] = {
    "bytes up": ("bytes_up", numbers.size_exact),
    "bytes down": ("bytes_down", numbers.size_exact),
    "model size": ("model_bytes", numbers.size_exact),
    "peak memory": ("peak_memory", numbers.size_exact),
    "multiply-adds": ("multiply_adds", numbers.operations),
    "time": ("seconds", numbers.duration),
}
"""Likewise, each with how its mean is told."""


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
    forward = _forward_transfers(rows)
    transferred = not all(np.isnan(one).all() for one in forward.values())
    if transferred:
        note += (
            " Forward transfer: accuracy on a task just after it was learned, minus "
            "that of a fresh model that learned nothing else; over all tasks but the "
            "first."
        )
    if paired:
        note += " Transfer gain: accuracy minus that of the local-only counterpart."
    if "before aggregation" in known:
        note += " Before aggregation: of what each client has trained itself."
    if "macro F1" in known:
        note += (
            " Balanced accuracy: mean over a task's classes of the fraction of their "
            "samples that were answered rightly; macro F1: mean over them of F1."
        )
    if "ARI" in known:
        note += (
            " ARI: adjusted Rand index of the server's clusters against the hidden "
            "concepts, mean over rounds. Effectiveness: fraction of the updates that "
            "went into the concept model which they had started from."
        )
    hidden = {entry.label: entry.runs[0].summary.hidden for entry in rows}
    if given := [label for label, how in hidden.items() if how and how.reveal_ids]:
        note += f" Concept ids given to clients and server: {', '.join(given)}."
    costs = [
        title
        for title, (key, _) in _COSTS.items()
        if not all(np.isnan(_values(entry, key)).all() for entry in rows)
    ]
    best = max(rows, key=lambda entry: np.nan_to_num(_mean(entry, "average_accuracy")))
    final = numbers.fraction(_mean(best, "average_accuracy"))
    head = [
        *known,
        *(["forward transfer"] if transferred else []),
        *(["transfer gain"] if paired else []),
    ]
    return Section(
        f"{best.label} ends with the highest accuracy: {final}"
        if len(rows) > 1
        else f"{best.label} ends with an accuracy of {final}",
        note,
        Table(
            ["method", *head, *costs],
            [
                [
                    Cell(
                        entry.label,
                        colour=entry.colour,
                        link=page_of(entry.runs[0], folder),
                    ),
                    *(_measure(_values(entry, key)) for key in known.values()),
                    *([_measure(forward[entry.label], "+")] if transferred else []),
                    *([_measure(gains[entry.label], "+")] if paired else []),
                    *(_cost(entry, title) for title in costs),
                ]
                for entry in rows
            ],
            "methods",
        ),
    )


def _cost(entry: Entry, title: str) -> Value:
    key, told = _COSTS[title]
    mean = _mean(entry, key)
    return numbers.UNKNOWN if np.isnan(mean) else told(mean)


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


def _forward_transfers(rows: Sequence[Entry]) -> dict[str, Accuracy]:
    """Return the forward transfer of each run of each entry, NaN if not known."""
    runs = [run for entry in rows for run in entry.runs]
    found = iter(forward_transfers([_learned(run) for run in runs]))
    return {entry.label: np.array([next(found) for _ in entry.runs]) for entry in rows}


def _learned(run: Run) -> Learned:
    """Return what a run has learned; nothing of hidden concepts, at no known time."""
    summary = run.summary
    return Learned(
        tuple(getattr(summary, key) for key in ALIKE),
        summary.single_task and summary.hidden is None,
        run.accuracy,
    )


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
