"""Runs grouped for a comparison: by title, and federated beside local-only."""

from collections.abc import Sequence
from dataclasses import dataclass

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report.charts import plot
from fcl_flower.results.report.reader import Run
from fcl_flower.results.report.sections.transfer_gain import Pair


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The runs of one label, one per seed, and the colour of its lines."""

    label: str
    runs: tuple[Run, ...]
    colour: str

    @property
    def local_only(self) -> bool:
        """Return whether its clients did not communicate."""
        return self.runs[0].summary.local_only


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
    """Return the runs by label; a local-only one has the colour of its counterpart.

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
        colours.setdefault(owner, plot.category_colour(len(colours)))
        found.append(Entry(label, tuple(members), colours[owner]))
    return found


def pairs(entries: Sequence[Entry]) -> list[Pair]:
    """Return each federated entry with its local-only counterpart, by their seeds.

    Both must get hidden concepts in the same way: a client that has all at once gains
    by that, not by the federation.
    """
    found = []
    for federated in entries:
        own = {run.summary.seed: run.accuracy for run in federated.runs}
        for local_only in entries:
            other = {run.summary.seed: run.accuracy for run in local_only.runs}
            seeds = sorted(own.keys() & other.keys())
            ours, theirs = federated.runs[0].summary, local_only.runs[0].summary
            counterparts = (
                ours.counterpart == theirs.label and ours.hidden == theirs.hidden
            )
            if counterparts and seeds:
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
