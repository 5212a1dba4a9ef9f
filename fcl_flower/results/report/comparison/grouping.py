"""Runs grouped for a comparison: by title, and federated beside local-only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy, TransferGain
from fcl_flower.results.report.charts.traces import category_colour
from fcl_flower.results.report.reader import Run


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The runs of one label, one per seed, and the colour of its lines.

    A run that is ``under_way`` is an entry of its own.
    """

    label: str
    runs: tuple[Run, ...]
    colour: str
    under_way: bool = False

    @property
    def local_only(self) -> bool:
        """Return whether its clients did not communicate."""
        return self.runs[0].summary.local_only


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A federated run and its local-only counterpart, seed by seed.

    Attributes:
        federated: title of the federated run.
        local_only: title of the same without communication.
        with_federation: for each seed, ``a``, shape (clients, tasks, tasks).
        without: the same of the local-only runs.
        colour: CSS colour of the federated run.
    """

    federated: str
    local_only: str
    with_federation: Sequence[Accuracy]
    without: Sequence[Accuracy]
    colour: str

    @property
    def unit(self) -> str:
        """Return what the spread is over: seeds where there are several."""
        return "seed" if len(self.without) > 1 else "client"

    @property
    def gain(self) -> TransferGain:
        """Return the gain per seed, or per client where there is one seed."""
        if self.unit == "client":
            return metrics.transfer_gain(self.with_federation[0], self.without[0])
        federated, local_only = [], []
        for a, b in zip(self.with_federation, self.without, strict=True):
            # A client that is missing in one run must not sway the other run's mean.
            unknown = np.isnan(a) | np.isnan(b)
            federated.append(
                metrics.mean_measured(np.where(unknown, np.nan, a), axis=0)
            )
            local_only.append(
                metrics.mean_measured(np.where(unknown, np.nan, b), axis=0)
            )
        return metrics.transfer_gain(np.stack(federated), np.stack(local_only))


def require_identical_scenario(runs: Sequence[Run]) -> None:
    """Refuse runs whose numbers cannot be set side by side.

    Tasks are compared where the scenarios' seeds agree: another seed draws other
    tasks of the same scenario on purpose.

    Raises:
        ConfigError: names the first run that differs.
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


def entries(runs: Sequence[Run]) -> list[Entry]:
    """Return the runs by label, those under way for themselves.

    A local-only one has the colour of its counterpart.

    Raises:
        ConfigError: a label has two runs of one seed.
    """
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.summary.label, []).append(run)
    owners = {
        members[0].summary.counterpart: label
        for label, members in reversed(grouped.items())
    }
    colours: dict[str, str] = {}
    found = []
    for label, members in grouped.items():
        seeds = [run.summary.seed for run in members]
        if len(set(seeds)) < len(seeds):
            raise ConfigError(
                f"label {label!r} is used by two runs with the same seed "
                f"({', '.join(str(run.folder) for run in members)}), expected distinct "
                "labels or seeds"
            )
        owner = owners.get(label, label) if members[0].summary.local_only else label
        colour = colours.setdefault(owner, category_colour(len(colours)))
        finished = tuple(run for run in members if run.summary.progress is None)
        found += [Entry(label, finished, colour)] if finished else []
        found += [
            Entry(f"{label} seed {run.summary.seed}, under way", (run,), colour, True)
            for run in members
            if run.summary.progress is not None
        ]
    return found


def counterpart_of(federated: Entry, entries: Sequence[Entry]) -> Entry | None:
    """Return the local-only runs that an entry is held against, if they are there.

    Both must get hidden concepts in the same way: a client that has all at once gains
    by that, not by the federation.
    """
    ours = federated.runs[0].summary
    for other in entries:
        theirs = other.runs[0].summary
        if ours.counterpart == theirs.label and ours.hidden == theirs.hidden:
            return other
    return None


def pairs(entries: Sequence[Entry]) -> list[Pair]:
    """Return each federated entry with its local-only counterpart, by their seeds."""
    found = []
    for federated in entries:
        local_only = counterpart_of(federated, entries)
        if local_only is None:
            continue
        own = {run.summary.seed: run.accuracy for run in federated.runs}
        other = {run.summary.seed: run.accuracy for run in local_only.runs}
        if seeds := sorted(own.keys() & other.keys()):
            found.append(
                Pair(
                    federated.label,
                    local_only.label,
                    [own[seed] for seed in seeds],
                    [other[seed] for seed in seeds],
                    federated.colour,
                )
            )
    return found
