"""The sections of a comparison on how accuracies went, over tasks and over rounds."""

from collections.abc import Callable, Sequence

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.comparison.grouping import Entry
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Section
from fcl_flower.results.report.reader import Run, evaluations

Curve = dict[int, float]


def progress_section(rows: Sequence[Entry]) -> Section:
    """Return how the test accuracy of every method went, one line each."""
    hidden = rows[0].runs[0].summary.hidden is not None
    curve, step = (_over_rounds, "round") if hidden else (_over_tasks, "task")
    series = _all_series(rows, curve)
    if not series:
        return Section("No accuracy was measured", "No client was evaluated.")
    finished = {entry.label for entry in rows if not entry.under_way}
    known = sorted(
        (float(one.values[-1]), one.name)
        for one in series
        if one.name in finished and not np.isnan(one.values[-1])
    )
    heading = f"Accuracy as {step}s go by"
    if len(known) > 1:
        (second, behind), (best, leader) = known[-2:]
        lead = numbers.fraction(best - second)
        then = f"After the last {step} {leader}"
        heading = (
            f"{then} leads {behind} by {lead}"
            if float(lead)
            else f"{then} and {behind} are level"
        )
    over = "over all concepts" if hidden else "over the tasks learned so far"
    note = f"Average accuracy {over}, {_means(rows)}"
    picture = lines(series, step, "Average accuracy of every method")
    return Section(heading, note, picture)


def training_section(rows: Sequence[Entry]) -> Section:
    """Return how the validation accuracy of every method went, round by round."""
    series = _all_series(rows, _validation)
    if not series:
        return Section(
            "Validation accuracies are not known",
            "No round of these runs has one.",
        )
    return Section(
        "How training went, round by round",
        "Accuracy on validation data of the task that is learned, mean over the "
        f"clients that replied; {_means(rows)}",
        lines(
            series,
            "round",
            "Validation accuracy of every method",
            "validation accuracy",
        ),
    )


def _means(rows: Sequence[Entry]) -> str:
    """Return over what the lines are means, and what is special about some."""
    told = numbers.mean_over(rows[0].runs[0].summary.clients, "client")
    told += ". Dashed: local-only, without communication."
    if any(len(entry.runs) > 1 for entry in rows):
        return told + " Bands: standard deviation over seeds."
    return told + " Of a single seed: no deviation is known."


def _all_series(rows: Sequence[Entry], curve: Callable[[Run], Curve]) -> list[Series]:
    """Return mean and spread of the runs of each entry that has a value at all."""
    series = [_series(entry, curve) for entry in rows]
    return [one for one in series if not np.isnan(one.values).all()]


def _series(entry: Entry, curve: Callable[[Run], Curve]) -> Series:
    """Return mean and spread of its runs' curves, where all of them have a value."""
    curves = [curve(run) for run in entry.runs]
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[one[step] for step in at] for one in curves])
    return Series(
        entry.label,
        np.array(at, np.int64),
        metrics.mean_measured(values, axis=0),
        entry.colour,
        metrics.spread_measured(values, axis=0) if len(entry.runs) > 1 else None,
        entry.local_only,
    )


def _over_tasks(run: Run) -> Curve:
    """Return the average accuracy after each task."""
    return {
        t: metrics.average_accuracy(run.accuracy[:, : t + 1, : t + 1])
        for t in range(run.summary.tasks)
    }


def _over_rounds(run: Run) -> Curve:
    """Return the average accuracy after each round with an evaluation."""
    found = evaluations(run)
    return dict(zip(found.rounds.tolist(), found.average.tolist(), strict=True))


def _validation(run: Run) -> Curve:
    """Return the validation accuracy of each round that has one."""
    found = ((r.round, r.valid_accuracy) for r in run.rounds)
    return {number: value for number, value in found if value is not None}
