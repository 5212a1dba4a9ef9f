"""The registry of scenarios: built-in scenarios, and scenarios of packages."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from fcl_flower.config.parsing import Params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.registry import Registry
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.concepts import ConceptsParams, concept_tasks
from fcl_flower.data.scenarios.domains import (
    DomainsParams,
    domain_tasks,
    merged_domains,
)
from fcl_flower.data.scenarios.groups import classes, mixed, overlapped, text_tasks
from fcl_flower.data.scenarios.incremental import (
    ClassIncrementalParams,
    class_incremental_tasks,
    public_tasks,
)
from fcl_flower.data.scenarios.plan import (
    ConceptStream,
    Scenario,
    ScenarioSpec,
    Task,
    TaskStreams,
    merged_labels,
)

__all__ = [
    "SCENARIOS",
    "Scenario",
    "ScenarioEntry",
    "Task",
    "draw_scenario",
]


def _local_tasks(spec: ScenarioSpec) -> TaskStreams:
    none = np.empty(0, np.int64)
    tasks = tuple(
        Task(f"task {number}", "", (), (), none, none, none, group=None)
        for number in range(spec.tasks)
    )
    return (tasks,) * spec.clients


class ScenarioEntry(NamedTuple):
    """The function that draws a scenario, and the scenario's defaults.

    Attributes:
        draw: function that draws each client's tasks from a `ScenarioSpec` with the
            entry's params.
        summary: one line for ``fcl list``.
        params: parameter model.
        classes_per_task: default; 0 if the tasks share out all classes. None stands for
            5 if there are 25 classes or more, otherwise for 2.
        hidden: whether the tasks are concepts that recur, and that no learner knows.
            Then ``params`` derives from `ConceptsParams`.
        incremental: whether tasks bring new classes, some of which a client never has;
            the server may have samples. ``params`` derives from
            `ClassIncrementalParams`.
        head: default head: ``multi`` for a head a task, or ``single``.
        single: reason why the scenario needs a single head, for errors; empty if a head
            a task works, too.
        clients: default number of clients of a simulation.
        tasks: default number of tasks; 0 for one a data set.
        rounds: default rounds per task.
        local_data: whether clients have data of their own, so that none are drawn.
    """

    draw: Callable[[ScenarioSpec[Any]], TaskStreams]
    summary: str
    params: type[Params] = Params
    classes_per_task: int | None = None
    hidden: bool = False
    incremental: bool = False
    head: Literal["multi", "single"] = "multi"
    single: str = ""
    clients: int = 4
    tasks: int = 4
    rounds: int = 5
    local_data: bool = False


_SCENARIOS = {
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
        text_tasks,
        "one data set; each task draws its labels, tasks share documents of none",
        classes_per_task=4,
    ),
    "concepts": ScenarioEntry(
        concept_tasks,
        "hidden concepts: data sets, or classes of one; each round a client has one",
        ConceptsParams,
        hidden=True,
        head="single",
        single="whose concepts are hidden",
        clients=12,
        rounds=40,
    ),
    "class-incremental": ScenarioEntry(
        class_incremental_tasks,
        "all learn the same new classes in one order, each a share of them; one head",
        ClassIncrementalParams,
        classes_per_task=0,
        incremental=True,
        head="single",
        single="where a sample's task is unknown",
        clients=4,
        rounds=2,
    ),
    "domains": ScenarioEntry(
        domain_tasks,
        "each task has the same classes, and is a data set of its own; one head",
        DomainsParams,
        classes_per_task=0,
        head="single",
        single="where a sample's task is unknown",
        tasks=0,
    ),
    "local-data": ScenarioEntry(
        _local_tasks,
        "each client's local data, in the folder that it was started with",
        local_data=True,
    ),
}

SCENARIOS = Registry("scenario", "fcl_flower.scenarios", ScenarioEntry, _SCENARIOS)
"""The registry of scenarios.

Another package declares a `ScenarioEntry` under the entry point group
``fcl_flower.scenarios``.
"""


def draw_scenario(config: RunConfig, data_root: Path, params: Params) -> Scenario:
    """Draw the plan of a federation; later calls return the same object.

    Training samples of a class group that several clients learn are cut, class by
    class, into disjoint parts of nearly equal size. Every client gets all test samples
    of its tasks; ``concepts`` and ``class-incremental`` deal them out, too.

    Args:
        config: the run's configuration, with the name of a scenario in `SCENARIOS` and
            numbers of clients and tasks. Clients themselves cap local data.
        data_root: folder of the data sets' files.
        params: settings of the scenario, of its entry's type.
    """
    section, data = config.scenario, config.data
    name, datasets, public = section.name, data.names, data.public_dataset
    entry = SCENARIOS[name]
    if bool(datasets) == entry.local_data or len(set(datasets)) < len(datasets):
        expected = "none" if entry.local_data else "one or more different names"
        raise config_error("datasets", list(datasets), expected)
    sources = tuple(load_dataset(dataset, data_root) for dataset in datasets)
    total = sum(source.num_classes for source in sources)
    size = requested = section.classes_per_task
    if not size:
        few_or_many = 5 if total >= 25 else 2
        usual = entry.classes_per_task
        size = few_or_many if usual is None else min(usual, total)
    alone = size < 2 and (requested or entry.classes_per_task != 0)
    if alone and config.model.head != "single":
        expected = "at least 2, or model.head 'single'"
        raise config_error("classes_per_task", size, expected)
    most = max((source.num_classes for source in sources), default=size)
    if requested > most:
        names = " and ".join(source.name for source in sources)
        expected = f"at most the {most} classes of {names}"
        raise config_error("classes_per_task", requested, expected)
    spec = ScenarioSpec(
        sources=sources,
        clients=section.clients,
        tasks=section.tasks,
        classes_per_task=size,
        valid_fraction=section.valid_fraction,
        params=params,
        max_train_per_class=section.max_train_per_class,
        max_test_per_class=section.max_test_per_class,
        public_fraction=data.public_fraction if entry.incremental else 0.0,
        public=load_dataset(public, data_root) if public else None,
        seed=config.run.seed,
    )
    return _build(name, entry, spec)


# The data sets themselves are part of the key, since two may have one name.
@lru_cache(maxsize=8)
def _build(name: str, entry: ScenarioEntry, spec: ScenarioSpec[Any]) -> Scenario:
    plan, params, size = entry.draw(spec), spec.params, spec.classes_per_task
    all_sources = spec.sources if spec.public is None else (*spec.sources, spec.public)
    stream: ConceptStream | None = None
    public: tuple[Task, ...] = ()
    merged: Mapping[tuple[str, int], tuple[str, int]] = {}
    if not size or entry.hidden or entry.incremental:
        size = max(
            len({label for task in tasks for label in task.classes})
            for tasks in zip(*plan, strict=True)
        )
    if isinstance(params, ConceptsParams):
        window, duration = params.window, params.mean_duration
        stream = ConceptStream(spec.tasks, window, duration, spec.seed)
        merged = merged_labels(params.merge_labels, all_sources)
    elif isinstance(params, ClassIncrementalParams):
        public = public_tasks(spec)
        merged = merged_labels(params.merge_labels, all_sources)
    elif entry.hidden or entry.incremental:
        raise ContractError(f"scenario {name}: its params are of no such scenario")
    elif isinstance(params, DomainsParams):
        merged = merged_domains(spec.sources)
    return Scenario(
        name,
        spec.seed,
        tuple(source.name for source in spec.sources),
        size,
        plan,
        stream,
        public,
        merged,
        MappingProxyType({source.name: source for source in all_sources}),
    )
