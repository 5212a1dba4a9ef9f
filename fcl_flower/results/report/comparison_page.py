"""The page of several runs of the identical scenario, side by side."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import lines
from fcl_flower.results.report.grouping import (
    Entry,
    entries,
    pairs,
    require_identical_scenario,
)
from fcl_flower.results.report.html import numbers, page
from fcl_flower.results.report.html.markup import Markup, join, tag
from fcl_flower.results.report.reader import Run, evaluations, read_run
from fcl_flower.results.report.sections.transfer_gain import gain_sections

_MEASURES = {
    "accuracy": "average_accuracy",
    "before aggregation": "before_aggregation.average_accuracy",
    "forgetting": "forgetting",
    "backward transfer": "backward_transfer",
    "ARI": "concepts.ari",
    "effectiveness": "concepts.effectiveness",
}
"""Columns of the table, of which those that no run knows are left out."""


def write_comparison(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``comparison.html`` into ``folder`` and return its path.

    Runs with the same label are one row, mean and standard deviation over their
    seeds. A federated run is paired with the run of the same seed that its summary
    names as its local-only counterpart; their difference is the transfer gain.

    Args:
        folder: where the page is put; made if it does not exist.
        runs: run folders, at least one.

    Raises:
        ConfigError: a file is missing or wrong, a label has two runs of one seed, or
            the runs are not of the identical scenario.
    """
    if not runs:
        raise ConfigError("runs is empty, expected at least one run folder to compare")
    read = [read_run(path) for path in runs]
    require_identical_scenario(read)
    rows = entries(read)
    first = read[0].summary
    seeds = sorted({run.summary.seed for run in read})
    return page.write_page(
        folder / "comparison.html",
        f"{numbers.plural(len(rows), 'method')} on {first.scenario}",
        f"{first.dataset or first.data}, {numbers.plural(first.clients, 'client')}, "
        f"{numbers.plural(first.tasks, first.full_noun)}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        _body(rows),
        f"Made from the files in {', '.join(path.name for path in runs)}.",
    )


def _body(rows: Sequence[Entry]) -> Iterator[Markup]:
    summary = rows[0].runs[0].summary
    paired = pairs(rows)
    yield from (page.verdict(*pair.verdict()) for pair in paired)
    yield _side_by_side(rows)
    if summary.tasks > 1 or summary.hidden is not None:
        yield _progress(rows)
    yield from gain_sections(paired, summary.noun)


def _side_by_side(rows: Sequence[Entry]) -> Markup:
    seeds = max(len(entry.runs) for entry in rows)
    note = "Accuracies are means over the clients at the end of the run"
    note += ", mean ± standard deviation over seeds." if seeds > 1 else "."
    note += " Sizes and times are means over seeds." if seeds > 1 else ""
    known = {
        title: key
        for title, key in _MEASURES.items()
        if not all(np.isnan(_values(entry, key)).all() for entry in rows)
    }
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
    return page.section(
        f"{best.label} ends with the highest accuracy: {final}"
        if len(rows) > 1
        else f"{best.label} ends with an accuracy of {final}",
        note,
        page.table(
            ["method", *known, "bytes up", "bytes down", "model size", "time"],
            (_row(entry, [*known.values()]) for entry in rows),
        ),
    )


def _row(entry: Entry, measures: Sequence[str]) -> list[str]:
    swatch = tag("i", style=f"background:{entry.colour}", class_="swatch")
    return [
        join([swatch, entry.label]),
        *(_measure(entry, key) for key in measures),
        numbers.size_exact(_mean(entry, "bytes_up")),
        numbers.size_exact(_mean(entry, "bytes_down")),
        numbers.size_exact(_mean(entry, "model_bytes")),
        numbers.duration(_mean(entry, "seconds")),
    ]


def _values(entry: Entry, key: str) -> Accuracy:
    """Return one figure of the summary for each seed, NaN where it is null."""
    return np.array([attrgetter(key)(run.summary) for run in entry.runs], np.float64)


def _mean(entry: Entry, key: str) -> float:
    return float(metrics.mean_measured(_values(entry, key), axis=0))


def _measure(entry: Entry, key: str) -> str:
    spread = float(metrics.spread_measured(_values(entry, key), axis=0))
    return numbers.with_spread(numbers.fraction(_mean(entry, key)), spread)


def _progress(rows: Sequence[Entry]) -> Markup:
    """Return how the accuracy of every method went, one line each."""
    first = rows[0].runs[0].summary
    if first.hidden is None:
        curve, steps = _over_tasks, lines.over_tasks(first.tasks)
        note = "Average accuracy over the tasks learned so far, mean over clients."
    else:
        rounds = max(run.summary.total_rounds for e in rows for run in e.runs)
        curve, steps = _over_rounds, lines.over_rounds(rounds)
        note = "Average accuracy over all concepts, mean over clients."
    series = [_series(entry, curve) for entry in rows]
    series = [one for one in series if not np.isnan(one.values).all()]
    if not series:
        return page.section("No accuracy was measured", "No client was evaluated.")
    known = sorted(
        (float(one.values[-1]), one.name)
        for one in series
        if not np.isnan(one.values[-1])
    )
    heading = f"Accuracy as {steps.name}s go by"
    if len(known) > 1:
        (second, behind), (best, leader) = known[-2:]
        lead = numbers.fraction(best - second)
        then = f"After the last {steps.name} {leader}"
        heading = (
            f"{then} leads {behind} by {lead}"
            if float(lead)
            else f"{then} and {behind} are level"
        )
    note += " Dashed: local-only, without communication."
    if any(len(entry.runs) > 1 for entry in rows):
        note += " Bands: standard deviation over seeds."
    picture = lines.lines(series, steps, "Average accuracy of every method")
    return page.section(heading, note, picture)


def _series(entry: Entry, curve: Callable[[Run], dict[int, float]]) -> lines.Series:
    """Return mean and spread of its runs' curves, where all of them have a value."""
    curves = [curve(run) for run in entry.runs]
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[one[step] for step in at] for one in curves])
    return lines.Series(
        entry.label,
        np.array(at, np.int64),
        metrics.mean_measured(values, axis=0),
        metrics.spread_measured(values, axis=0),
        entry.colour,
        entry.local_only,
    )


def _over_tasks(run: Run) -> dict[int, float]:
    """Return the average accuracy after each task."""
    return {
        t: metrics.average_accuracy(run.accuracy[:, : t + 1, : t + 1])
        for t in range(run.summary.tasks)
    }


def _over_rounds(run: Run) -> dict[int, float]:
    """Return the average accuracy after each round with an evaluation."""
    found = evaluations(run)
    return dict(zip(found.rounds.tolist(), found.average.tolist(), strict=True))
