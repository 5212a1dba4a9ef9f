"""The page of several runs of the identical scenario, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcl_flower import metrics
from fcl_flower.errors import ConfigError
from fcl_flower.metrics import Accuracy
from fcl_flower.report import numbers, over_tasks, page
from fcl_flower.report.gain import Pair, gain_sections
from fcl_flower.report.markup import Markup, join, tag
from fcl_flower.report.run_folder import Run, read_run


def write_comparison(folder: Path, runs: Sequence[Path]) -> Path:
    """Write ``comparison.html`` into ``folder`` and return its path.

    Runs with the same label are one row, mean and standard deviation over their
    seeds. A federated run is paired with the run of the same seed that its summary
    names as its isolated twin; their difference is the transfer gain.

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
    _require_identical_scenario(read)
    entries = _entries(read)
    first = read[0].summary
    seeds = sorted({run.summary.seed for run in read})
    return page.write_page(
        folder / "comparison.html",
        f"{numbers.plural(len(entries), 'method')} on {first.scenario}",
        f"{first.dataset}, {numbers.plural(first.clients, 'client')}, "
        f"{numbers.plural(first.tasks, 'task')}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        _body(entries),
        f"Made from the files in {', '.join(path.name for path in runs)}.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """The runs of one label, one per seed, and the colour of its lines."""

    label: str
    runs: tuple[Run, ...]
    colour: str

    @property
    def isolated(self) -> bool:
        return self.runs[0].summary.isolated


def _require_identical_scenario(runs: Sequence[Run]) -> None:
    """Refuse runs whose numbers cannot be set side by side.

    Tasks are compared where the scenarios' seeds agree: another seed draws other
    tasks of the same scenario on purpose.
    """
    first = runs[0]
    drawn = {first.scenario.seed: first}
    for run in runs[1:]:
        for key in ("scenario", "dataset", "clients", "tasks"):
            expected, found = getattr(first.summary, key), getattr(run.summary, key)
            if expected != found:
                raise ConfigError(
                    f"{run.folder}: {key} is {found!r}, expected {expected!r} as in "
                    f"{first.folder}"
                )
        same = drawn.setdefault(run.scenario.seed, run)
        if same.scenario.clients != run.scenario.clients:
            raise ConfigError(
                f"{run.folder}: the tasks of {run.scenario.name!r} differ from those "
                f"in {same.folder}, expected the identical scenario"
            )


def _entries(runs: Sequence[Run]) -> list[_Entry]:
    """Return the runs by label; an isolated one has the colour of its counterpart."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.summary.label, []).append(run)
    owners = {
        members[0].summary.twin: label for label, members in reversed(grouped.items())
    }
    colours: dict[str, str] = {}
    entries = []
    for label, members in grouped.items():
        seeds = [run.summary.seed for run in members]
        if len(set(seeds)) < len(seeds):
            raise ConfigError(
                f"label {label!r} is used by two runs with the same seed "
                f"({', '.join(str(run.folder) for run in members)}), expected distinct "
                "labels or seeds"
            )
        owner = owners.get(label, label) if members[0].summary.isolated else label
        colours.setdefault(owner, f"var(--c{len(colours) % 8})")
        entries.append(_Entry(label, tuple(members), colours[owner]))
    return entries


def _pairs(entries: Sequence[_Entry]) -> list[Pair]:
    pairs = []
    for federated in entries:
        own = {run.summary.seed: run.accuracy for run in federated.runs}
        for isolated in entries:
            other = {run.summary.seed: run.accuracy for run in isolated.runs}
            seeds = sorted(own.keys() & other.keys())
            if federated.runs[0].summary.twin == isolated.label and seeds:
                pairs.append(
                    Pair(
                        federated.label,
                        isolated.label,
                        [own[seed] for seed in seeds],
                        [other[seed] for seed in seeds],
                        federated.colour,
                    )
                )
    return pairs


def _body(entries: Sequence[_Entry]) -> Iterator[Markup]:
    pairs = _pairs(entries)
    yield from (page.verdict(*pair.verdict()) for pair in pairs)
    yield _side_by_side(entries)
    if entries[0].runs[0].summary.tasks > 1:
        yield _over_tasks(entries)
    yield from gain_sections(pairs)


def _side_by_side(entries: Sequence[_Entry]) -> Markup:
    seeds = max(len(entry.runs) for entry in entries)
    note = "Accuracies are means over the clients at the end of the run"
    note += ", mean ± standard deviation over seeds." if seeds > 1 else "."
    note += " Sizes and times are means over seeds." if seeds > 1 else ""
    best = max(
        entries, key=lambda entry: np.nan_to_num(_mean(entry, "average_accuracy"))
    )
    final = numbers.fraction(_mean(best, "average_accuracy"))
    return page.section(
        f"{best.label} ends with the highest accuracy: {final}"
        if len(entries) > 1
        else f"{best.label} ends with an accuracy of {final}",
        note,
        page.table(
            [
                "method",
                "accuracy",
                "forgetting",
                "backward transfer",
                "bytes up",
                "bytes down",
                "model size",
                "time",
            ],
            map(_row, entries),
        ),
    )


def _row(entry: _Entry) -> list[str]:
    swatch = tag("i", style=f"background:{entry.colour}", class_="swatch")
    return [
        join([swatch, entry.label]),
        _measure(entry, "average_accuracy"),
        _measure(entry, "forgetting"),
        _measure(entry, "backward_transfer"),
        numbers.size_exact(_mean(entry, "bytes_up")),
        numbers.size_exact(_mean(entry, "bytes_down")),
        numbers.size_exact(_mean(entry, "model_bytes")),
        numbers.duration(_mean(entry, "seconds")),
    ]


def _values(entry: _Entry, key: str) -> Accuracy:
    """Return one figure of the summary for each seed, NaN where it is null."""
    return np.array([getattr(run.summary, key) for run in entry.runs], np.float64)


def _mean(entry: _Entry, key: str) -> float:
    return float(metrics.mean_measured(_values(entry, key), axis=0))


def _measure(entry: _Entry, key: str) -> str:
    spread = float(metrics.spread_measured(_values(entry, key), axis=0))
    return numbers.with_spread(numbers.fraction(_mean(entry, key)), spread)


def _over_tasks(entries: Sequence[_Entry]) -> Markup:
    series = [_curve(entry) for entry in entries]
    series = [one for one in series if not np.isnan(one.values).all()]
    if not series:
        return page.section("No accuracy was measured", "No client was evaluated.")
    ends = [(one.values[-1], one.name) for one in series]
    known = sorted(end for end in ends if not np.isnan(end[0]))
    heading = "Accuracy as tasks arrive"
    if len(known) > 1:
        lead = numbers.fraction(float(known[-1][0] - known[-2][0]))
        heading = f"After the last task {known[-1][1]} leads {known[-2][1]} by {lead}"
    note = (
        "Average accuracy over the tasks learned so far, mean over clients. "
        "Dashed: isolated, without communication."
    )
    if any(len(entry.runs) > 1 for entry in entries):
        note += " Bands: standard deviation over seeds."
    picture = over_tasks.lines_over_tasks(series, "Average accuracy of every method")
    return page.section(heading, note, picture)


def _curve(entry: _Entry) -> over_tasks.Series:
    tasks = entry.runs[0].summary.tasks
    curves = np.array(
        [
            [
                metrics.average_accuracy(r.accuracy[:, : t + 1, : t + 1])
                for t in range(tasks)
            ]
            for r in entry.runs
        ]
    )
    return over_tasks.Series(
        entry.label,
        metrics.mean_measured(curves, axis=0),
        metrics.spread_measured(curves, axis=0),
        entry.colour,
        entry.isolated,
    )
