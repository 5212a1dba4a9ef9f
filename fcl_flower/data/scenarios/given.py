"""Tasks that a caller gives with a data set, or takes from a benchmark of Avalanche.

Avalanche is by Lomonaco et al., CVPR Workshops 2021, https://arxiv.org/abs/2104.00405.
This module does not import the library. It reads a benchmark's two streams of
experiences, each with a data set of (sample, label, ...) and with task labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.arrays import ARRAYS, AnyArray, checked_dataset
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.partition import Indices
from fcl_flower.data.scenarios.groups import (
    BY_CLASS,
    EVENLY,
    Group,
    SplitRule,
    check_sharers,
    class_streams,
    deal_samples,
    only_source,
)
from fcl_flower.data.scenarios.incremental import ClassIncrementalParams
from fcl_flower.data.scenarios.plan import ScenarioSpec, TaskStreams
from fcl_flower.data.scenarios.registry import ScenarioEntry

GIVEN_TASKS = "given-tasks"
"""The name of the scenario while a run lasts."""


class TaskSamples(NamedTuple):
    """The samples of a task: int64 indices into a data set's two splits.

    Test samples are left out if ``train`` has no sample of their class.
    """

    train: Indices
    test: Indices


class GivenTasksParams(ClassIncrementalParams):
    """The settings of given tasks that each bring new classes of a single head."""

    split: SplitRule = EVENLY
    """Rule by which clients share a task: iid (all samples evenly) or dirichlet:BETA
    (skewed by class)."""


@dataclass(frozen=True, eq=False)
class GivenTasks:
    """A data set and its tasks, which `simulate` and `compare` take as ``data``.

    All clients learn the tasks in the same order. The training samples of a task are
    dealt to them, class by class; each client gets all test samples. ``head`` is
    ``multi`` for a head a task, which a test then knows, or ``single``.
    """

    data: Dataset
    tasks: tuple[TaskSamples, ...]
    head: Literal["multi", "single"]

    @property
    def incremental(self) -> bool:
        """Whether there is a single head, and no class is in two tasks."""
        labels = [label for task_labels in self._labels() for label in task_labels]
        return self.head == "single" and len(set(labels)) == len(labels)

    @property
    def entry(self) -> ScenarioEntry:
        """The scenario of these tasks."""
        return ScenarioEntry(
            self._draw,
            "tasks that are given; all learn them in one order, each its share",
            GivenTasksParams if self.incremental else Params,
            classes_per_task=self._largest(),
            incremental=self.incremental,
            head=self.head,
        )

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of a run over all tasks, by ``section.key``."""
        settings: dict[str, object] = {
            "scenario.name": GIVEN_TASKS,
            "scenario.tasks": len(self.tasks),
        }
        if self.incremental:
            # A benchmark has no samples for the server.
            settings["data.public_fraction"] = 0.0
        return MappingProxyType(settings)

    def _labels(self) -> list[tuple[int, ...]]:
        y = self.data.train.y
        return [tuple(np.unique(y[task.train]).tolist()) for task in self.tasks]

    def _largest(self) -> int:
        return max(map(len, self._labels()))

    def _draw(self, spec: ScenarioSpec[Any]) -> TaskStreams:
        self._check(spec)
        source = spec.sources[0]
        groups = [
            Group(f"{source.name}/{number}", source, labels)
            for number, labels in enumerate(self._labels()[: spec.tasks])
        ]
        dealt = [
            self._shares(spec, number, group) for number, group in enumerate(groups)
        ]
        return class_streams(spec, groups, dealt, numbered_by_task=True)

    def _check(self, spec: ScenarioSpec[Any]) -> None:
        source = only_source(spec, GIVEN_TASKS)
        most, largest = len(self.tasks), self._largest()
        size, public = spec.classes_per_task, spec.public_fraction
        foreign = source.train is not self.data.train
        by_class = getattr(spec.params, "split", EVENLY) == BY_CLASS
        ordered = getattr(spec.params, "class_order", "")
        first = getattr(spec.params, "first_task_classes", 0)
        dealt = "iid or dirichlet:BETA, as all clients meet all classes of a task"
        sizes = f"none, or {largest} as the largest of the given tasks has"
        for key, value, wrong, expected in (
            ("datasets", source.name, foreign, "the data set that the tasks are of"),
            ("tasks", spec.tasks, spec.tasks > most, f"at most the {most} given"),
            ("classes_per_task", size, size != largest, sizes),
            (
                "public_fraction",
                public,
                public > 0,
                "0, as all samples are the clients'",
            ),
            ("scenario.split", BY_CLASS, by_class, dealt),
            ("scenario.class_order", ordered, ordered, "none, as the tasks are given"),
            ("scenario.first_task_classes", first, first, "0, as the tasks are given"),
        ):
            if wrong:
                raise config_error(key, value, expected)

    def _shares(
        self, spec: ScenarioSpec[Any], number: int, group: Group
    ) -> list[tuple[Indices, Indices]]:
        source, task = group.source, self.tasks[number]
        train = np.intersect1d(task.train, spec.samples(source, "train", group.labels))
        test = np.intersect1d(task.test, spec.samples(source, "test", group.labels))
        if not len(test):
            expected = f"one or more of the classes of task {number}"
            raise config_error("test samples", 0, expected)
        if self.head == "multi":
            # All clients need a sample of each class, as their heads must agree.
            for label in group.labels:
                count = int(np.count_nonzero(source.train.y[train] == label))
                check_sharers(spec.clients, source, label, count)
        rule = getattr(spec.params, "split", EVENLY)
        return [(part, test) for part in deal_samples(spec, rule, number, group, train)]


class Experience(Protocol):
    """An experience: a data set of (sample, label, ...) and its task labels."""

    dataset: Any
    task_labels: Iterable[int]


class Benchmark(Protocol):
    """A benchmark of Avalanche; one test experience may serve all tasks."""

    train_stream: Sequence[Experience]
    test_stream: Sequence[Experience]


class _Read(NamedTuple):
    x: AnyArray
    y: npt.NDArray[np.int64]
    task: int


def from_avalanche(benchmark: Benchmark, name: str = "avalanche") -> GivenTasks:
    """Convert the experiences of a benchmark to tasks, for ``simulate(data=...)``.

    Each experience of the training stream becomes a task. If each has its own task
    label, there is a head a task, and classes differ by task and label. If all have the
    same task label, there is a single head.

    Samples are read once, through the transforms for evaluation. These must leave
    images in [0, 1], since the run standardizes them. Make a benchmark whose usual
    transforms have ``Normalize`` with ``eval_transform=None``.

    Args:
        benchmark: benchmark whose samples have one shape: PIL images, image tensors
            (C, H, W), time series (channels, steps), or rows of a table (columns,).
        name: name of the data set.
    """
    train = _read(benchmark.train_stream, f"{name}: train")
    test = _read(benchmark.test_stream, f"{name}: test")
    if len(test) not in (1, len(train)):
        expected = f"{len(train)} as the training stream has, or one for all"
        raise config_error(f"{name}: test experiences", len(test), expected)
    tasks = {experience.task for experience in train}
    if len(tasks) not in (1, len(train)):
        expected = f"one for all {len(train)} experiences, or one for each"
        raise config_error(f"{name}: task labels", len(tasks), expected)
    pairs = ((each.task, label) for each in train for label in each.y.tolist())
    classes = sorted(set(pairs))
    x_train, y_train, of_train = _joined(train, classes, f"{name}: train")
    x_test, y_test, of_test = _joined(test, classes, f"{name}: test")
    arrays = dict(zip(ARRAYS, (x_train, y_train, x_test, y_test), strict=True))
    several = len(tasks) > 1
    names = (f"{task}/{label}" if several else str(label) for task, label in classes)
    data = checked_dataset(name, name, arrays, tuple(names))
    tested = of_test * (len(train) // len(test))
    samples = tuple(map(TaskSamples, of_train, tested))
    return GivenTasks(data, samples, "multi" if several else "single")


def _read(stream: Sequence[Experience], where: str) -> list[_Read]:
    return [
        _read_one(experience, f"{where} experience {number}")
        for number, experience in enumerate(stream)
    ]


def _read_one(experience: Experience, where: str) -> _Read:
    labels = set(experience.task_labels)
    if len(labels) != 1:
        raise config_error(f"{where}: task labels", sorted(labels), "one")
    dataset = experience.dataset
    evaluated = dataset.eval() if hasattr(dataset, "eval") else dataset
    items = [evaluated[index] for index in range(len(evaluated))]
    if not items:
        raise config_error(f"{where}: samples", 0, "one or more")
    samples = [_channels_last(np.asarray(item[0])) for item in items]
    shapes = {sample.shape for sample in samples}
    if len(shapes) > 1:
        raise config_error(f"{where}: shapes", sorted(shapes), "one")
    y = np.array([int(item[1]) for item in items], np.int64)
    return _Read(np.stack(samples), y, labels.pop())


def _channels_last(x: AnyArray) -> AnyArray:
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        return x
    if np.issubdtype(x.dtype, np.floating) and not (x.min() >= 0 and x.max() <= 1):
        # Such a grey image would pass for a time series later.
        raise ConfigError(
            f"benchmark: got an image with values from {x.min():g} to {x.max():g}, "
            "expected [0, 1]: make the benchmark with eval_transform=None"
        )
    return x[0] if x.shape[0] == 1 else np.moveaxis(x, 0, -1)


def _joined(
    experiences: Sequence[_Read], classes: Sequence[tuple[int, int]], where: str
) -> tuple[AnyArray, npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    shapes = {experience.x.shape[1:] for experience in experiences}
    if len(shapes) > 1:
        raise config_error(f"{where} shapes", sorted(shapes), "one")
    index = {pair: label for label, pair in enumerate(classes)}
    labels = []
    for experience in experiences:
        for label in experience.y.tolist():
            if (experience.task, label) not in index:
                task = experience.task
                expected = f"one that the training samples of task {task} have"
                raise config_error(f"{where} label", label, expected)
            labels.append(index[experience.task, label])
    ends = np.cumsum([len(experience.y) for experience in experiences])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    x = np.concatenate([experience.x for experience in experiences])
    return x, np.array(labels), parts
