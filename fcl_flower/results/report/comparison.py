"""The page of several runs of the identical scenario, side by side."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.results import measures, tables
from fcl_flower.results.events import About
from fcl_flower.results.measures import Accuracy
from fcl_flower.results.record import Record, read
from fcl_flower.results.report import charts, wording
from fcl_flower.results.report.charts import Chart, Series, line_chart
from fcl_flower.results.report.page import Section, charts_of, write_page
from fcl_flower.results.report.run_page import time_left, where
from fcl_flower.results.report.wording import Cell, Table, Value
from fcl_flower.results.tables import MEASURES, SPREAD_FORMS, Measure


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The runs of one label, one per seed, with the colour of their lines.

    A run that is ``under_way`` is a group by itself.
    """

    label: str
    runs: Sequence[Record]
    colour: str
    under_way: bool = False

    @property
    def about(self) -> About:
        """The first run's description, for what all runs have in common."""
        return self.runs[0].about

    @property
    def row(self) -> Mapping[str, Any]:
        """The means over the runs; a run under way has no gain over others."""
        return tables.rows([run.summary.content() for run in self.runs])[0]


def write_comparison(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``comparison.html`` of some runs into a folder, made if need be.

    Runs with the same label make one row: mean and standard deviation over their seeds.
    A federated run is paired with the run of the same seed that its summary names as
    its local-only counterpart. Their difference is the transfer gain. A run under way
    has its own row and is in no mean.

    Raises:
        ConfigError: a file is missing or wrong, a label has two runs of one seed, or
            the runs are not of the identical scenario.
    """
    records = _read(runs)
    about = [record.about for record in records]
    first, seeds = about[0], sorted({one.seed for one in about})
    labels = {one.label for one in about}
    models = dict.fromkeys(one.model for one in about)
    steps = dict.fromkeys(map(wording.steps, about))
    groups = _groups(records)
    return write_page(
        folder / "comparison.html",
        f"{wording.plural(len(labels), 'method')} on {first.scenario}",
        f"{first.dataset or wording.data(first)}, model {' or '.join(models)}, "
        f"{wording.plural(first.clients, 'client')}, "
        f"{wording.plural(first.tasks, wording.noun(first))}, "
        f"{' or '.join(steps)}, {'seed' if len(seeds) == 1 else 'seeds'} "
        f"{', '.join(map(str, seeds))}",
        _sections(groups, folder),
        f"Made from the files in {', '.join(path.name for path in runs)}.",
        verdicts=_verdicts(groups),
    )


def comparison_charts(runs: Sequence[Path]) -> list[Chart]:
    """List the charts of the page of finished runs in their order."""
    groups = require_comparable(runs)
    return charts_of(_sections(groups, None))


def require_comparable(runs: Sequence[Path]) -> list[Group]:
    """Group finished runs, and refuse runs that cannot be compared.

    Raises:
        ConfigError: see `write_comparison`; one of the runs has not finished.
    """
    records = _read(runs)
    for record in records:
        if not record.finished:
            expected = "that of a finished run; fcl report shows one so far"
            raise config_error("folder", str(record.folder), expected)
    return _groups(records)


# ---- which runs belong together


def _read(paths: Sequence[Path]) -> list[Record]:
    """Read runs of the identical scenario.

    Their tasks must agree where the scenarios' seeds do, since another seed draws other
    tasks of the same scenario on purpose.
    """
    if not paths:
        raise ConfigError("runs is empty, expected at least one run folder to compare")
    first, *others = runs = [*map(read, paths)]
    drawn = {first.scenario.seed: first}
    for run in others:
        for key in ("scenario", "dataset", "clients", "tasks"):
            expected, value = getattr(first.about, key), getattr(run.about, key)
            if expected != value:
                raise ConfigError(
                    f"{run.folder}: {key} is {value!r}, expected {expected!r} as in "
                    f"{first.folder}"
                )
        same = drawn.setdefault(run.scenario.seed, run)
        if same.scenario.clients != run.scenario.clients:
            raise ConfigError(
                f"{run.folder}: the tasks of {run.scenario.name!r} differ from those "
                f"in {same.folder}, expected the identical scenario"
            )
    return runs


def _groups(runs: Sequence[Record]) -> list[Group]:
    """Group runs by label; each run under way is a group by itself.

    A local-only group has the colour of its counterpart.
    """
    grouped: dict[str, list[Record]] = {}
    for run in runs:
        grouped.setdefault(run.about.label, []).append(run)
    owners = {
        members[0].about.counterpart: label
        for label, members in reversed(grouped.items())
    }
    colours: dict[str, str] = {}
    groups = []
    for label, members in grouped.items():
        if len({run.about.seed for run in members}) < len(members):
            raise ConfigError(
                f"label {label!r} is used by two runs with the same seed "
                f"({', '.join(str(run.folder) for run in members)}), expected distinct "
                "labels or seeds"
            )
        owner = owners.get(label, label) if members[0].about.local_only else label
        colour = colours.setdefault(owner, charts.category_colour(len(colours)))
        finished = [run for run in members if run.finished]
        groups += [Group(label, finished, colour)] if finished else []
        groups += [
            Group(f"{label} seed {run.about.seed}, under way", [run], colour, True)
            for run in members
            if not run.finished
        ]
    return groups


# ---- the page


def _sections(groups: Sequence[Group], folder: Path | None) -> Iterator[Section]:
    streams = {group.label: group.about.hidden for group in groups}
    revealed = [label for label, how in streams.items() if how and how.reveal_ids]
    ids = f" Concept ids given to clients and server: {', '.join(revealed)}."
    yield Section(
        "Methods side by side",
        "At the end of the run; mean ± standard deviation over seeds where there are "
        "several. A run under way is in no mean and no gain. Rest the pointer on the "
        "head of a column for what it is." + (ids if revealed else ""),
        [_side_by_side(groups, folder)],
    )
    note = ". Dashed: local-only, without communication."
    if any(len(group.runs) > 1 for group in groups):
        note += " Bands: standard deviation over seeds."
    hidden = groups[0].about.hidden is not None
    step, over = ("round", "all concepts") if hidden else ("task", "the tasks so far")
    yield Section(
        f"Accuracy as {step}s go by",
        f"Average accuracy over {over}, mean over clients{note}",
        [line_chart("Average accuracy of every method", step, map(_curve, groups))],
    )
    yield Section(
        "Runs",
        "The page of each run says how it was made.",
        [_runs(groups, folder)],
    )


def _verdicts(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """Compare each federated group with its local-only counterpart, seed by seed.

    Both must get hidden concepts in the same way, as a client that has all concepts at
    once gains by that and not by federation.
    """
    finished, paired = [group for group in groups if not group.under_way], False
    for group, other in product(finished, finished):
        ours, theirs = group.about, other.about
        if ours.counterpart != theirs.label or ours.hidden != theirs.hidden:
            continue
        alone = {run.about.seed: run.accuracy for run in other.runs}
        gains = [
            measures.transfer_gain(run.accuracy, alone[run.about.seed])
            for run in group.runs
            if run.about.seed in alone
        ]
        if gains:
            paired = True
            yield _effect(group.label, other.label, gains)
    if finished and not paired:
        sentence = (
            "No run here has its local-only counterpart of the same seed beside it, so "
            "nothing can be said about federation."
        )
        yield sentence, ""


def _effect(label: str, alone: str, gains: Sequence[Accuracy]) -> tuple[str, str]:
    """Say whether federation helped, with the tone of the sentence.

    It helped or hurt only if the 95 % interval leaves out zero. The interval is over
    seeds, or over the clients of a single seed.
    """
    unit, by_unit = "client", measures.mean_measured(gains[0], axis=1)
    if len(gains) > 1:
        by_task = measures.mean_measured(np.array(gains), axis=1)
        unit, by_unit = "seed", measures.mean_measured(by_task, axis=1)
    measured = by_unit[~np.isnan(by_unit)].tolist()
    if not measured:
        sentence = "nothing was measured at the end of both runs, so nothing can be "
        return f"{label}: {sentence}said about federation.", ""
    effect = measures.paired(measured)
    gain, margin = effect.difference, effect.margin
    amount = f"{wording.signed(gain)} final accuracy over {alone}"
    if margin is None:
        sentence = f"with a single {unit} there is no telling whether federation "
        return f"{label}: {amount}; {sentence}did it.", ""
    better = sum(gain > 0 for gain in measured)
    low, high = gain - margin, gain + margin
    evidence = (
        f"{amount}, 95 % interval {wording.signed(low)} to {wording.signed(high)}, "
        f"better for {better} of {wording.plural(effect.pairs, unit)}"
    )
    if unit == "client":
        evidence += "; one seed, so another may differ"
    if low <= 0 <= high:
        return f"No clear effect of federation on {label}: {evidence}.", ""
    verb, tone = ("helped", "good") if gain > 0 else ("hurt", "bad")
    return f"Federation {verb} {label}: {evidence}.", tone


FIRST = ("average_accuracy", "transfer_gain")
"""Measures of the first columns, which a narrow window shows, too."""


def _side_by_side(groups: Sequence[Group], folder: Path | None) -> Table:
    finished = [run for group in groups if not group.under_way for run in group.runs]
    rows: dict[str, Mapping[str, Any]] = {
        row["label"]: row
        for row in tables.rows([run.summary.content() for run in finished])
    }
    rows |= {group.label: group.row for group in groups if group.under_way}
    noun, columns = wording.noun(groups[0].about), list[tuple[Cell, list[Value]]]()
    for measure in sorted(
        MEASURES, key=lambda m: (m.key not in FIRST, m.form not in SPREAD_FORMS)
    ):
        cells = [_mean(measure, rows[group.label]) for group in groups]
        if any(cells):
            name = measure.name[0].lower() + measure.name[1:]
            head = Cell(name, measure.meaning.format(noun=noun))
            columns.append((head, [cell or wording.UNKNOWN for cell in cells]))
    names = []
    for group in groups:
        now, link = group.runs[0].progress, _page_from(folder, group.runs[0])
        lines = (where(now), f"{time_left(now)} left") if group.under_way else ()
        names.append(Cell(group.label, lines=lines, colour=group.colour, link=link))
    table = zip(names, *(cells for _, cells in columns), strict=True)
    return Table(["method", *(head for head, _ in columns)], [*table], "methods")


def _page_from(folder: Path | None, run: Record) -> str:
    """Find the address of a run's page from a folder; empty where it has none."""
    page = run.folder / "report.html"
    return quote(os.path.relpath(page, folder)) if folder and page.exists() else ""


def _mean(measure: Measure, row: Mapping[str, Any]) -> Value:
    """Write the mean of a measure over runs; nothing where it is not known."""
    if (value := row.get(measure.key)) is None:
        return ""
    spread = value if isinstance(value, Mapping) else {"mean": value}
    text = wording.FORMS[measure.form](spread["mean"])
    if measure.form not in SPREAD_FORMS or isinstance(text, Cell):
        return text
    return wording.with_spread(text, spread["deviation"])


def _curve(group: Group) -> Series:
    """Average the accuracies so far of a group where all its runs have a value."""
    curves = [_so_far(run) for run in group.runs]
    at = sorted(set.intersection(*map(set, curves)))
    values = np.array([[values[place] for place in at] for values in curves])
    several = len(group.runs) > 1
    return Series(
        group.label,
        at,
        measures.mean_measured(values, axis=0),
        group.colour,
        np.std(values, axis=0, ddof=1) if several else None,
        group.about.local_only,
    )


def _so_far(record: Record) -> dict[int, float]:
    """Average the accuracy after each task, or each evaluation of hidden concepts."""
    accuracy, tasks = record.accuracy, range(record.about.tasks)
    if record.about.hidden is None:
        parts = (accuracy[:, : t + 1, : t + 1] for t in tasks)
        return {t: measures.average_accuracy(part) for t, part in enumerate(parts)}
    rounds, evaluations = record.by_round()
    means = map(measures.mean_over_clients, evaluations)
    return dict(zip(rounds.tolist(), means, strict=True))


def _runs(groups: Sequence[Group], folder: Path | None) -> Table:
    rows: list[list[Value]] = []
    for run in (run for group in groups for run in group.runs):
        about = run.about
        name = Cell(about.label, link=_page_from(folder, run), hint=run.folder.name)
        rows.append([name, str(about.seed), about.model, wording.steps(about)])
    return Table(["run", "seed", "model", "length"], rows, "runs", words=4)
