"""The table of scenarios: one function and one line make a new one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fcl_flower.data.groups import Group, drawn_groups, superclass_groups
from fcl_flower.data.plan import Scenario, Task
from fcl_flower.data.samples import share_samples
from fcl_flower.data.sources import ImageSet, load_source
from fcl_flower.errors import ConfigError
from fcl_flower.seeds import derive

__all__ = ["SCENARIOS", "Scenario", "ScenarioEntry", "Task", "build_scenario"]


@dataclass(frozen=True, slots=True)
class Draw:
    """What a scenario is drawn from.

    Attributes:
        sources: the data sets, at least one.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2.
        seed: the run's seed.
    """

    sources: tuple[ImageSet, ...]
    clients: int
    tasks: int
    classes_per_task: int
    seed: int

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the generator of one purpose."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))


class Streams(NamedTuple):
    """The outcome: all groups, and for each client the group of each task."""

    groups: list[Group]
    streams: list[list[int]]


def _overlapped(draw: Draw) -> Streams:
    """Give every client its own random choice of groups, in its own order."""
    groups = _groups_of_one(draw, "overlapped")
    streams = [
        draw.rng("order", client).permutation(len(groups))[: draw.tasks].tolist()
        for client in range(draw.clients)
    ]
    return Streams(groups, streams)


def _classes(draw: Draw) -> Streams:
    """Give every client the same groups, in its own order."""
    groups = _groups_of_one(draw, "classes")
    chosen = draw.rng("choice").permutation(len(groups))[: draw.tasks]
    streams = [
        draw.rng("order", client).permutation(chosen).tolist()
        for client in range(draw.clients)
    ]
    return Streams(groups, streams)


def _mixed(draw: Draw) -> Streams:
    """Deal the groups of all data sets so that no two clients share one."""
    groups = []
    for number, source in enumerate(draw.sources):
        rng = draw.rng("groups", number)
        drawn = drawn_groups(source, draw.classes_per_task, rng)
        if not drawn:
            raise ConfigError(
                f"classes_per_task: got {draw.classes_per_task}, expected at most the "
                f"{source.num_classes} classes of {source.name}."
            )
        groups += drawn
    wanted = draw.clients * draw.tasks
    if wanted > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks} for each of {draw.clients} clients, expected at "
            f"most {len(groups)} in all, which is what {len(draw.sources)} data sets "
            f"give at {draw.classes_per_task} classes a task."
        )
    order = draw.rng("order").permutation(len(groups))[:wanted]
    return Streams(groups, order.reshape(draw.clients, draw.tasks).tolist())


class ScenarioEntry(NamedTuple):
    """How a scenario is drawn, and one line about it."""

    draw: Callable[[Draw], Streams]
    summary: str


SCENARIOS: dict[str, ScenarioEntry] = {
    "overlapped": ScenarioEntry(
        _overlapped,
        "one data set; each client draws its class groups, shared ones are split",
    ),
    "mixed": ScenarioEntry(
        _mixed, "several data sets cut into tasks that no two clients share"
    ),
    "classes": ScenarioEntry(
        _classes, "one data set; each client learns the same groups in its own order"
    ),
}


def build_scenario(
    name: str,
    *,
    datasets: Sequence[str],
    data_root: Path,
    clients: int,
    tasks: int,
    classes_per_task: int | None,
    valid_fraction: float,
    seed: int,
) -> Scenario:
    """Return the plan of a federation; later calls return the same object.

    Training samples of a class group that several clients learn are cut, class by
    class, into disjoint parts of nearly equal size. Test samples are whole for
    everyone.

    Args:
        name: a key of `SCENARIOS`.
        datasets: names for `load_source`, without repetition.
        data_root: where files are looked for.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2. None means 5 where the data sets have 25 or
            more classes in all, otherwise 2.
        valid_fraction: share of each task's training samples, class by class, that
            is kept for validation, in (0, 1). A class with a single sample keeps
            it for training.
        seed: the run's seed, at least 0.

    Raises:
        ConfigError: a value is out of range, a data set is missing, or the data
            does not suffice for so many clients and tasks.
    """
    return _build(
        name,
        tuple(datasets),
        data_root,
        clients,
        tasks,
        classes_per_task,
        valid_fraction,
        seed,
    )


@lru_cache(maxsize=8)
def _build(
    name: str,
    datasets: tuple[str, ...],
    data_root: Path,
    clients: int,
    tasks: int,
    classes_per_task: int | None,
    valid_fraction: float,
    seed: int,
) -> Scenario:
    if name not in SCENARIOS:
        known = ", ".join(sorted(SCENARIOS))
        raise ConfigError(f"scenario: got {name!r}, expected one of {known}.")
    if not datasets or len(set(datasets)) < len(datasets):
        raise ConfigError(
            f"datasets: got {list(datasets)}, expected one or more different names."
        )
    for key, value in (("clients", clients), ("tasks", tasks)):
        if value < 1:
            raise ConfigError(f"{key}: got {value}, expected at least 1.")
    if not 0 < valid_fraction < 1:
        raise ConfigError(
            f"valid_fraction: got {valid_fraction}, expected a number between 0 and 1."
        )
    sources = tuple(load_source(dataset, data_root) for dataset in datasets)
    if classes_per_task is None:
        total = sum(source.num_classes for source in sources)
        classes_per_task = 5 if total >= 25 else 2
    if classes_per_task < 2:
        raise ConfigError(
            f"classes_per_task: got {classes_per_task}, expected at least 2."
        )
    draw = Draw(sources, clients, tasks, classes_per_task, seed)
    groups, streams = SCENARIOS[name].draw(draw)
    plan = share_samples(groups, streams, valid_fraction, seed)
    return Scenario(name, seed, datasets, classes_per_task, plan)


def _groups_of_one(draw: Draw, scenario: str) -> list[Group]:
    """Return the groups of the only data set, at least as many as tasks."""
    if len(draw.sources) > 1:
        names = [source.name for source in draw.sources]
        raise ConfigError(
            f"datasets: got {names}, expected one data set for scenario {scenario}."
        )
    source = draw.sources[0]
    groups = superclass_groups(source) if draw.classes_per_task == 5 else []
    groups = groups or drawn_groups(source, draw.classes_per_task, draw.rng("groups"))
    if draw.tasks > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks}, expected at most the {len(groups)} groups of "
            f"{draw.classes_per_task} classes that {source.name} gives."
        )
    return groups
