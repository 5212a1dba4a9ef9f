"""The table of scenarios: one function and one line make a new one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fcl_flower.data.concepts import concept_chunks, concept_groups
from fcl_flower.data.dataset import DataSet
from fcl_flower.data.groups import Group, drawn_groups, superclass_groups
from fcl_flower.data.plan import Scenario, Task
from fcl_flower.data.pool import drawn_tasks
from fcl_flower.data.samples import share_samples
from fcl_flower.data.sources import load_source
from fcl_flower.data.stream import Stream
from fcl_flower.errors import ConfigError
from fcl_flower.seeds import derive

__all__ = [
    "SCENARIOS",
    "Scenario",
    "ScenarioEntry",
    "Task",
    "build_scenario",
    "scenario_entry",
]

Plan: TypeAlias = tuple[tuple[Task, ...], ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """What a scenario is drawn from.

    Attributes:
        sources: the data sets; none where clients have data of their own.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2.
        valid_fraction: share of a task's training samples kept for validation.
        window: training samples that a client has of a hidden concept in a round.
        stay: rounds that it stays with one, on average; 0 for all at once.
        seed: the run's seed.
    """

    sources: tuple[DataSet, ...]
    clients: int
    tasks: int
    classes_per_task: int
    valid_fraction: float
    window: int
    stay: int
    seed: int

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the generator of one purpose."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))


def _overlapped(draw: Draw) -> Plan:
    """Give every client its own random choice of groups, in its own order."""
    groups = _groups_of_one(draw, "overlapped")
    streams = [
        draw.rng("order", client).permutation(len(groups))[: draw.tasks].tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def _classes(draw: Draw) -> Plan:
    """Give every client the same groups, in its own order."""
    groups = _groups_of_one(draw, "classes")
    chosen = draw.rng("choice").permutation(len(groups))[: draw.tasks]
    streams = [
        draw.rng("order", client).permutation(chosen).tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def _mixed(draw: Draw) -> Plan:
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
    return _shared(draw, groups, order.reshape(draw.clients, draw.tasks).tolist())


def _text(draw: Draw) -> Plan:
    """Draw the labels of every task by themselves, so that tasks may overlap."""
    return drawn_tasks(
        _only_source(draw.sources, "text"),
        clients=draw.clients,
        tasks=draw.tasks,
        classes_per_task=draw.classes_per_task,
        valid_fraction=draw.valid_fraction,
        seed=draw.seed,
    )


def _concepts(draw: Draw) -> Plan:
    """Give every client a chunk of every concept."""
    groups = concept_groups(draw.sources, draw.tasks, draw.seed)
    return concept_chunks(groups, draw.clients, draw.valid_fraction, draw.seed)


def _own(draw: Draw) -> Plan:
    """Count the tasks: what is in them only their client knows."""
    none = np.empty(0, np.int64)
    tasks = tuple(
        Task(f"task {number}", "", (), (), none, none, none, group=None)
        for number in range(1, draw.tasks + 1)
    )
    return (tasks,) * draw.clients


def _shared(
    draw: Draw, groups: Sequence[Group], streams: Sequence[Sequence[int]]
) -> Plan:
    return share_samples(groups, streams, draw.valid_fraction, draw.seed)


def _five_or_two(classes: int) -> int:
    return 5 if classes >= 25 else 2


def _four_at_most(classes: int) -> int:
    return min(4, classes)


class ScenarioEntry(NamedTuple):
    """How a scenario is drawn, and one line about it.

    Attributes:
        draw: makes the plan.
        summary: one line for ``fcl list``.
        classes_per_task: where the user gives none, by the classes there are in all.
        hidden: its tasks are concepts that clients meet again and again, and nobody
            who learns is told which.
        head: one a task, or a single one, where the user names none.
        clients: of a simulation, where the user gives none.
        rounds: likewise.
        own: the clients have data of their own, which nobody draws.
    """

    draw: Callable[[Draw], Plan]
    summary: str
    classes_per_task: Callable[[int], int] = _five_or_two
    hidden: bool = False
    head: Literal["multi", "single"] = "multi"
    clients: int = 4
    rounds: int = 5
    own: bool = False


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
    "text": ScenarioEntry(
        _text,
        "one data set; each task draws its labels, tasks share documents of none",
        _four_at_most,
    ),
    "concepts": ScenarioEntry(
        _concepts,
        "hidden concepts: data sets, or classes of one; each round a client meets one",
        hidden=True,
        head="single",
        clients=12,
        rounds=40,
    ),
    "own": ScenarioEntry(
        _own,
        "each client's own data, in the folder that it was started with",
        own=True,
    ),
}


def scenario_entry(name: str) -> ScenarioEntry:
    """Return what is known of a scenario.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in SCENARIOS:
        known = ", ".join(sorted(SCENARIOS))
        raise ConfigError(f"scenario: got {name!r}, expected one of {known}.")
    return SCENARIOS[name]


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
    window: int = 320,
    stay: int = 1,
) -> Scenario:
    """Return the plan of a federation; later calls return the same object.

    Training samples of a class group that several clients learn are cut, class by
    class, into disjoint parts of nearly equal size. Test samples are whole for
    everyone.

    Args:
        name: a key of `SCENARIOS`.
        datasets: names for `load_source`, without repetition; none for ``own``.
        data_root: where files are looked for.
        clients: number of clients, at least 1.
        tasks: tasks per client, or concepts, at least 1.
        classes_per_task: at least 2; not for ``concepts``, and for ``own`` the most
            that a task has. None means the scenario's default: 5 where the data sets
            have 25 or more classes in all, otherwise 2; for ``text`` 4, or as many as
            there are.
        valid_fraction: share of each task's training samples, class by class, that
            is kept for validation, in (0, 1). A class with a single sample keeps
            it for training.
        seed: the run's seed, at least 0.
        window: training samples that a client has of a hidden concept in a round.
        stay: rounds that it stays with one, on average; 0 for all at once.

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
        window,
        stay,
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
    window: int,
    stay: int,
) -> Scenario:
    entry = scenario_entry(name)
    if bool(datasets) == entry.own or len(set(datasets)) < len(datasets):
        expected = "none" if entry.own else "one or more different names"
        raise ConfigError(f"datasets: got {list(datasets)}, expected {expected}.")
    for key, value in (("clients", clients), ("tasks", tasks)):
        if value < 1:
            raise ConfigError(f"{key}: got {value}, expected at least 1.")
    if not 0 < valid_fraction < 1:
        raise ConfigError(
            f"valid_fraction: got {valid_fraction}, expected a number between 0 and 1."
        )
    sources = tuple(load_source(dataset, data_root) for dataset in datasets)
    if entry.hidden and classes_per_task is not None:
        raise ConfigError(
            f"classes_per_task: got {classes_per_task}, expected none for scenario "
            f"{name}, whose concepts share out all classes."
        )
    if classes_per_task is None:
        total = sum(source.num_classes for source in sources)
        classes_per_task = entry.classes_per_task(total)
    if classes_per_task < 2:
        raise ConfigError(
            f"classes_per_task: got {classes_per_task}, expected at least 2."
        )
    draw = Draw(
        sources, clients, tasks, classes_per_task, valid_fraction, window, stay, seed
    )
    plan = entry.draw(draw)
    if not entry.hidden:
        return Scenario(name, seed, datasets, classes_per_task, plan)
    largest = max(len(concept.classes) for concept in plan[0])
    stream = Stream(tasks, window, stay, seed)
    return Scenario(name, seed, datasets, largest, plan, stream)


def _only_source(sources: Sequence[DataSet], scenario: str) -> DataSet:
    if len(sources) > 1:
        names = [source.name for source in sources]
        raise ConfigError(
            f"datasets: got {names}, expected one data set for scenario {scenario}."
        )
    return sources[0]


def _groups_of_one(draw: Draw, scenario: str) -> list[Group]:
    """Return the groups of the only data set, at least as many as tasks."""
    source = _only_source(draw.sources, scenario)
    groups = superclass_groups(source) if draw.classes_per_task == 5 else []
    groups = groups or drawn_groups(source, draw.classes_per_task, draw.rng("groups"))
    if draw.tasks > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks}, expected at most the {len(groups)} groups of "
            f"{draw.classes_per_task} classes that {source.name} gives."
        )
    return groups
