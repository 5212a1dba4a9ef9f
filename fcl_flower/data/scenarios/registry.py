"""The table of scenarios: one function and one line make a new one."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fcl_flower.config.params import Params
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.datasets.registry import load_dataset
from fcl_flower.data.scenarios.class_groups import (
    classes,
    mixed,
    only_source,
    overlapped,
)
from fcl_flower.data.scenarios.class_incremental import (
    class_incremental_tasks,
    public_tasks,
    same_labels,
)
from fcl_flower.data.scenarios.concept_stream import ConceptStream
from fcl_flower.data.scenarios.concepts import concept_chunks, concept_groups
from fcl_flower.data.scenarios.plan import Scenario, Task, TaskStreams
from fcl_flower.data.scenarios.spec import (
    USUAL,
    ClassIncrementalParams,
    ConceptsParams,
    Incremental,
    ScenarioSpec,
)
from fcl_flower.data.scenarios.text_pool import draw_tasks

__all__ = [
    "SCENARIOS",
    "Scenario",
    "ScenarioEntry",
    "Task",
    "draw_scenario",
    "scenario_entry",
]


def _text(draw: ScenarioSpec) -> TaskStreams:
    """Draw the labels of every task by themselves, so that tasks may overlap."""
    return draw_tasks(
        only_source(draw.sources, "text"),
        clients=draw.clients,
        tasks=draw.tasks,
        classes_per_task=draw.classes_per_task,
        valid_fraction=draw.valid_fraction,
        seed=draw.seed,
    )


def _concepts(draw: ScenarioSpec) -> TaskStreams:
    """Give every client a chunk of every concept."""
    groups = concept_groups(draw.sources, draw.tasks, draw.seed)
    return concept_chunks(groups, draw.clients, draw.valid_fraction, draw.seed)


def _own(draw: ScenarioSpec) -> TaskStreams:
    """Count the tasks: what is in them only their client knows."""
    none = np.empty(0, np.int64)
    tasks = tuple(
        Task(f"task {number}", "", (), (), none, none, none, group=None)
        for number in range(1, draw.tasks + 1)
    )
    return (tasks,) * draw.clients


def _five_or_two(classes: int) -> int:
    return 5 if classes >= 25 else 2


def _four_at_most(classes: int) -> int:
    return min(4, classes)


def _all_shared_out(_: int) -> int:
    return 0


class ScenarioEntry(NamedTuple):
    """How a scenario is drawn, and one line about it.

    Attributes:
        draw: makes the plan.
        summary: one line for ``fcl list``.
        classes_per_task: where the user gives none, by the classes there are in all;
            0 where tasks share them out.
        hidden: its tasks are concepts that clients meet again and again, and nobody
            who learns is told which.
        incremental: its tasks bring new classes, some of which a client never meets,
            and the server may have samples of its own.
        head: one a task, or a single one, where the user names none.
        single: why no head a task will do; empty where it will.
        clients: of a simulation, where the user gives none.
        rounds: likewise.
        own: the clients have data of their own, which nobody draws.
        params: its parameters.
    """

    draw: Callable[[ScenarioSpec], TaskStreams]
    summary: str
    classes_per_task: Callable[[int], int] = _five_or_two
    hidden: bool = False
    incremental: bool = False
    head: Literal["multi", "single"] = "multi"
    single: str = ""
    clients: int = 4
    rounds: int = 5
    own: bool = False
    params: type[Params] = Params


SCENARIOS: dict[str, ScenarioEntry] = {
    "overlapped": ScenarioEntry(
        overlapped,
        "one data set; each client draws its class groups, shared ones are split",
    ),
    "mixed": ScenarioEntry(
        mixed, "several data sets cut into tasks that no two clients share"
    ),
    "classes": ScenarioEntry(
        classes, "one data set; each client learns the same groups in its own order"
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
        params=ConceptsParams,
        head="single",
        single="whose concepts are hidden",
        clients=12,
        rounds=40,
    ),
    "class-incremental": ScenarioEntry(
        class_incremental_tasks,
        "all learn the same new classes in one order, each a share of them; one head",
        _all_shared_out,
        incremental=True,
        params=ClassIncrementalParams,
        head="single",
        single="where a sample's task is unknown",
        clients=4,
        rounds=2,
    ),
    "local-data": ScenarioEntry(
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


def draw_scenario(
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
    incremental: Incremental = USUAL,
) -> Scenario:
    """Return the plan of a federation; later calls return the same object.

    Training samples of a class group that several clients learn are cut, class by
    class, into disjoint parts of nearly equal size. Test samples are whole for
    everyone, but dealt out in ``concepts`` and ``class-incremental``.

    Args:
        name: a key of `SCENARIOS`.
        datasets: names for `load_dataset`, without repetition; none for ``own``.
        data_root: where files are looked for.
        clients: number of clients, at least 1.
        tasks: tasks per client, or concepts, at least 1.
        classes_per_task: at least 2; not for ``concepts``, and for ``own`` the most
            that a task has. None means the scenario's default: 5 where the data sets
            have 25 or more classes in all, otherwise 2; for ``text`` 4, or as many as
            there are; for ``class-incremental`` all are shared out, or each data set
            is a task.
        valid_fraction: share of each task's training samples, class by class, that
            is kept for validation, in (0, 1). A class with a single sample keeps
            it for training.
        seed: the run's seed, at least 0.
        window: training samples that a client has of a hidden concept in a round.
        stay: rounds that it stays with one, on average; 0 for all at once.
        incremental: for ``class-incremental`` only.

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
        incremental,
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
    incremental: Incremental,
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
    sources = tuple(load_dataset(dataset, data_root) for dataset in datasets)
    if entry.hidden and classes_per_task is not None:
        raise ConfigError(
            f"classes_per_task: got {classes_per_task}, expected none for scenario "
            f"{name}, whose concepts share out all classes."
        )
    total = sum(source.num_classes for source in sources)
    given, usual = classes_per_task, entry.classes_per_task(total)
    size = usual if given is None else given
    if size < 2 and (given is not None or usual):
        raise ConfigError(f"classes_per_task: got {size}, expected at least 2.")
    public = _public_source(name, datasets, data_root, incremental)
    draw = ScenarioSpec(
        *(sources, clients, tasks, size, valid_fraction, window, stay),
        *(incremental, public, seed),
    )
    plan = entry.draw(draw)
    if not (entry.hidden or entry.incremental):
        return Scenario(name, seed, datasets, size, plan)
    largest = max(
        len({label for task in of_all for label in task.classes})
        for of_all in zip(*plan, strict=True)
    )
    if entry.hidden:
        stream = ConceptStream(tasks, window, stay, seed)
        return Scenario(name, seed, datasets, largest, plan, stream)
    both = sources if public is None else (*sources, public)
    return Scenario(
        *(name, seed, datasets, largest, plan),
        public=public_tasks(draw),
        same=same_labels(incremental.same_labels, both),
    )


def _public_source(
    name: str, datasets: Sequence[str], data_root: Path, given: Incremental
) -> Dataset | None:
    """Return the server's own data set, None for none; refuse what nobody would use."""
    if not scenario_entry(name).incremental:
        usual = asdict(USUAL)
        for key, value in asdict(given).items():
            if value != usual[key]:
                raise ConfigError(
                    f"{key}: got {value!r}, expected none for "
                    f"scenario {name}, which is not class-incremental."
                )
    if given.public_dataset in datasets:
        raise ConfigError(
            f"public_dataset: got {given.public_dataset!r}, expected a data set that "
            "no client learns."
        )
    if not given.public_dataset:
        return None
    return load_dataset(given.public_dataset, data_root)
