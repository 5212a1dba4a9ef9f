"""The page of one run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import (
    Block,
    Chart,
    Section,
    Verdict,
    charts_of,
)
from fcl_flower.results.report.html.page import page, write_page
from fcl_flower.results.report.reader import Run, read_run
from fcl_flower.results.report.schema import Round
from fcl_flower.results.report.sections.accuracy import (
    accuracy_section,
    classes_seen_section,
    clients_section,
    concepts_accuracy_section,
    forgetting_section,
    matrix_section,
)
from fcl_flower.results.report.sections.adapters.attention import attention_section
from fcl_flower.results.report.sections.adapters.selection import overlap_section
from fcl_flower.results.report.sections.classes import classes_section
from fcl_flower.results.report.sections.clusters import clustering_sections
from fcl_flower.results.report.sections.headline import headline
from fcl_flower.results.report.sections.left_out import left_out_section
from fcl_flower.results.report.sections.settings import (
    concepts_section,
    scenario_section,
    settings_section,
)
from fcl_flower.results.report.sections.traffic import traffic_section
from fcl_flower.results.report.sections.under_way import under_way
from fcl_flower.results.report.so_far import read_so_far


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder and return its path.

    Args:
        folder: see `report_page`.

    Raises:
        ConfigError: a file is missing or not what it should be; names the file.
    """
    return write_page(folder / "report.html", report_page(folder))


def report_page(folder: Path, *, live: bool = False) -> str:
    """Return the page of a run; of one that is under way, what there is so far.

    Args:
        folder: holds ``summary.json``, ``accuracy.csv``, ``rounds.jsonl``,
            ``scenario.json`` and, for a strategy with foreign adapters,
            ``attention.json`` and, where it selects them, ``overlap.json``; for one
            that tells hidden concepts apart ``concepts.json``. Of a run under way
            ``begun.json`` and ``progress.json`` in place of the first.
        live: see `page`.

    Raises:
        ConfigError: see `write_report`.
    """
    run = read_so_far(folder)
    summary = run.summary
    count = numbers.plural(summary.tasks, summary.full_noun)
    local_only = ", local-only: no communication" if summary.local_only else ""
    return page(
        summary.label if summary.progress is None else f"{summary.label}, under way",
        f"{summary.strategy} on {summary.data}, model "
        f"{summary.model}, {numbers.plural(summary.clients, 'client')}, {count}, "
        f"{summary.steps}, seed {summary.seed}{local_only}",
        _body(run),
        f"{_made(run)}Made from {_files(run)}.",
        live=live,
    )


def run_charts(folder: Path) -> list[Chart]:
    """Return the charts of a run's page, in their order.

    Raises:
        ConfigError: see `write_report`.
    """
    return charts_of(_body(read_run(folder)))


def _made(run: Run) -> str:
    told = run.summary.environment.told
    return f"Run: {told}. " if told else ""


def _files(run: Run) -> str:
    begun = ["begun.json", "progress.json"]
    names = ["summary.json"] if run.summary.progress is None else begun
    names += ["accuracy.csv", "rounds.jsonl", "scenario.json"]
    names += [] if run.attention is None else ["attention.json"]
    names += [] if run.overlap is None else ["overlap.json"]
    names += [] if run.clusterings is None else ["concepts.json"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _body(run: Run) -> Iterator[Block]:
    summary = run.summary
    if summary.progress is not None:
        yield from under_way(summary, summary.progress, run.rounds)
    else:
        yield headline(summary)
        if count := summary.untrained_client_tasks:
            every = summary.clients * summary.tasks
            yield Verdict(numbers.untrained(count, every))
    yield from _accuracy(run)
    if run.clusterings is not None:
        yield from clustering_sections(run.clusterings, run)
    yield from _by_client_and_class(run)
    if run.rounds:
        yield _rounds(run.rounds)
        yield traffic_section(summary, run.rounds)
    if any(one.failed for one in run.rounds):
        yield left_out_section(run.rounds)
    if run.attention is not None:
        yield attention_section(run.attention)
    if run.overlap is not None:
        yield overlap_section(run.overlap)
    if summary.hidden is None:
        yield scenario_section(run.scenario)
    else:
        yield concepts_section(run.scenario, summary.hidden)
    yield settings_section(summary)


def _accuracy(run: Run) -> Iterator[Block]:
    """Yield the sections on accuracy and catastrophic forgetting."""
    summary, finished = run.summary, run.summary.progress is None
    if np.isnan(run.accuracy).all():
        so_far = "" if finished else " so far"
        yield Section(f"No accuracy was measured{so_far}", "No client was evaluated.")
    elif summary.hidden is not None:
        yield concepts_accuracy_section(run)
    elif summary.tasks > 1:
        if finished and summary.scenario == "class-incremental":
            yield classes_seen_section(summary)
        yield accuracy_section(run)
        if finished:
            yield forgetting_section(run)
        yield matrix_section(run)


def _by_client_and_class(run: Run) -> Iterator[Block]:
    """Yield the sections on whose accuracy it is, and of which classes."""
    if run.summary.clients > 1 and not np.isnan(run.accuracy).all():
        yield clients_section(run)
    if run.summary.per_class:
        yield classes_section(run.summary)


def _rounds(rounds: list[Round]) -> Section:
    """Return how validation accuracy and training loss went, round by round."""
    at = np.array([r.round for r in rounds])
    curves = [
        Series(
            "validation accuracy", at, _curve(rounds, "valid_accuracy"), "var(--c2)"
        ),
        Series("training loss", at, _curve(rounds, "loss"), "var(--c1)"),
    ]
    known = [one for one in curves if not np.isnan(one.values).all()]
    troubled = [r.round for r in rounds if r.failed]
    trouble = (
        f"in {numbers.plural(len(troubled), 'round')} a reply is missing"
        if troubled
        else "every reply arrived"
    )
    if not known:
        return Section(f"Training: {trouble}", "Neither loss nor accuracy is known.")
    note = "Mean over the clients that replied."
    if len({r.task for r in rounds}) > 1:
        note += " Bands: the task being learned."
    if troubled:
        note += " Triangles: rounds in which a client that was asked did not reply."
    first, last = (known[0].values[~np.isnan(known[0].values)][i] for i in (0, -1))
    tasks = [r.task for r in rounds]
    return Section(
        f"{known[0].name.capitalize()} starts at {first:.3f} and is {last:.3f} in the "
        f"last round; {trouble}",
        note,
        *(
            lines([one], "round", one.name.capitalize(), one.name, tasks, troubled)
            for one in known
        ),
    )


def _curve(rounds: list[Round], key: str) -> Accuracy:
    return np.array([getattr(one, key) for one in rounds], np.float64)
