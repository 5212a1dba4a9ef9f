"""A data set whose tasks are given: all clients learn them, each its share."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from fcl_flower.config.params import Params
from fcl_flower.core.errors import refuse
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices, train_valid_split
from fcl_flower.data.scenarios.class_groups import Group, check_sharers, only_source
from fcl_flower.data.scenarios.class_incremental import ClassIncrementalParams
from fcl_flower.data.scenarios.plan import Task, TaskStreams
from fcl_flower.data.scenarios.registry import ScenarioEntry
from fcl_flower.data.scenarios.sample_splits import (
    BY_CLASS,
    EVENLY,
    SplitRule,
    deal_samples,
)
from fcl_flower.data.scenarios.spec import ScenarioSpec

GIVEN_TASKS = "given-tasks"
"""Name of the scenario as long as a run goes on."""


class TaskSamples(NamedTuple):
    """Which samples of a data set make a task.

    Attributes:
        train: int64 indices into the training split.
        test: int64 indices into the test split; those of classes that ``train`` has
            not are left out.
    """

    train: Indices
    test: Indices


class GivenTasksParams(ClassIncrementalParams):
    """Settings where each task brings new classes of a single head."""

    split: SplitRule = EVENLY
    """How a task is shared out: iid (all samples evenly) or dirichlet:BETA (skewed by
    class)."""


@dataclass(frozen=True, eq=False)
class GivenTasks:
    """A data set and its tasks, which `simulate` and `compare` take as ``data``.

    All clients learn the tasks in the same order. The training samples of a task are
    dealt to them, class by class; the test samples are whole for each.

    Attributes:
        data: the data set.
        tasks: one or more, with at least 2 classes in the largest.
        head: ``multi`` for a head each, so that a test's task is known; ``single`` for
            one.
    """

    data: Dataset
    tasks: tuple[TaskSamples, ...]
    head: Literal["multi", "single"]

    @property
    def incremental(self) -> bool:
        """Return whether no class of the single head is in two tasks."""
        found = [label for labels in self._labels() for label in labels]
        return self.head == "single" and len(set(found)) == len(found)

    @property
    def entry(self) -> ScenarioEntry:
        """Return the tasks as a scenario."""
        return ScenarioEntry(
            self._draw,
            "tasks that are given; all learn them in one order, each its share",
            GivenTasksParams if self.incremental else Params,
            classes_per_task=lambda _: self._largest(),
            incremental=self.incremental,
            head=self.head,
        )

    @property
    def settings(self) -> Mapping[str, object]:
        """Return what a run over all tasks has to be told, by ``section.key``."""
        # Every sample is a client's: a benchmark has none for the server.
        own = {"data.public_fraction": 0.0} if self.incremental else {}
        told = {"scenario.name": GIVEN_TASKS, "scenario.tasks": len(self.tasks)}
        return MappingProxyType(told | own)

    def _labels(self) -> list[tuple[int, ...]]:
        """Return the classes of each task, ascending."""
        y = self.data.train.y
        return [tuple(np.unique(y[task.train]).tolist()) for task in self.tasks]

    def _largest(self) -> int:
        return max(map(len, self._labels()))

    def _draw(self, spec: ScenarioSpec[Any]) -> TaskStreams:
        """Return every client's tasks.

        Raises:
            ConfigError: the data are others, there are more tasks than given, or more
                clients than samples.
        """
        self._check(spec)
        streams: list[list[Task]] = [[] for _ in range(spec.clients)]
        # Two clients that have the same classes of a task learn the same.
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        for number, labels in enumerate(self._labels()[: spec.tasks]):
            group = Group(f"{spec.sources[0].name}/{number}", spec.sources[0], labels)
            for client, (part, test) in enumerate(self._shares(spec, number, group)):
                y = group.source.train.y[part]
                rng = spec.rng("valid", client, number)
                kept, out = train_valid_split(y, spec.valid_fraction, rng)
                own = tuple(np.unique(y).tolist())
                task = group.task(
                    train=part[kept],
                    valid=part[out],
                    test=test,
                    number=numbers.setdefault((number, own), len(numbers)),
                    labels=own,
                )
                streams[client].append(task)
        return tuple(map(tuple, streams))

    def _check(self, spec: ScenarioSpec[Any]) -> None:
        source = only_source(spec, GIVEN_TASKS)
        most, largest = len(self.tasks), self._largest()
        for key, value, wrong, expected in (
            (
                "datasets",
                source.name,
                source.train is not self.data.train,
                "the data set that the tasks are of",
            ),
            ("tasks", spec.tasks, spec.tasks > most, f"at most the {most} given"),
            (
                "classes_per_task",
                spec.classes_per_task,
                spec.classes_per_task != largest,
                f"none, or {largest} as the largest of the given tasks has",
            ),
            (
                "public_fraction",
                spec.public_fraction,
                spec.public_fraction > 0,
                "0, as all samples are the clients'",
            ),
            (
                "scenario.split",
                BY_CLASS,
                getattr(spec.params, "split", EVENLY) == BY_CLASS,
                "iid or dirichlet:BETA, as all clients meet all classes of a task",
            ),
        ):
            if wrong:
                raise refuse(key, value, expected)

    def _shares(
        self, spec: ScenarioSpec[Any], number: int, group: Group
    ) -> list[tuple[Indices, Indices]]:
        """Return the training and the test samples of each client, ascending."""
        source, given = group.source, self.tasks[number]
        train = np.intersect1d(given.train, spec.samples(source, "train", group.labels))
        test = np.intersect1d(given.test, spec.samples(source, "test", group.labels))
        if not len(test):
            expected = f"one or more of the classes of task {number}"
            raise refuse("test samples", 0, expected)
        if self.head == "multi":
            # A head has its classes in one order at all clients.
            for label in group.labels:
                count = int(np.count_nonzero(source.train.y[train] == label))
                check_sharers(spec.clients, source, label, count)
        rule = getattr(spec.params, "split", EVENLY)
        return [(part, test) for part in deal_samples(spec, rule, number, group, train)]
