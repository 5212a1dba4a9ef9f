"""A data set whose tasks are given, or those of a benchmark of Avalanche.

Lomonaco et al., CVPR Workshops 2021, https://arxiv.org/abs/2104.00405. Nothing of the
library is imported: what is read of a benchmark is two streams of experiences, each
with a data set of (sample, label, ...) and with task labels.
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
"""Name of the scenario as long as a run goes on."""


class TaskSamples(NamedTuple):
    """Which samples of a data set make a task: int64 indices into each split.

    Test samples of classes that ``train`` has not are left out.
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
    dealt to them, class by class; the test samples are whole for each. ``head`` is
    ``multi`` for a head each, so that a test's task is known, or ``single``.
    """

    data: Dataset
    tasks: tuple[TaskSamples, ...]
    head: Literal["multi", "single"]

    @property
    def incremental(self) -> bool:
        """Whether no class of the single head is in two tasks."""
        found = [label for labels in self._labels() for label in labels]
        return self.head == "single" and len(set(found)) == len(found)

    @property
    def entry(self) -> ScenarioEntry:
        """The tasks as a scenario."""
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
        """Settings of a run over all tasks, by ``section.key``."""
        # Every sample is a client's: a benchmark has none for the server.
        own = {"data.public_fraction": 0.0} if self.incremental else {}
        told = {"scenario.name": GIVEN_TASKS, "scenario.tasks": len(self.tasks)}
        return MappingProxyType(told | own)

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
        source, given = group.source, self.tasks[number]
        train = np.intersect1d(given.train, spec.samples(source, "train", group.labels))
        test = np.intersect1d(given.test, spec.samples(source, "test", group.labels))
        if not len(test):
            expected = f"one or more of the classes of task {number}"
            raise config_error("test samples", 0, expected)
        if self.head == "multi":
            # A head has its classes in one order at all clients.
            for label in group.labels:
                count = int(np.count_nonzero(source.train.y[train] == label))
                check_sharers(spec.clients, source, label, count)
        rule = getattr(spec.params, "split", EVENLY)
        return [(part, test) for part in deal_samples(spec, rule, number, group, train)]


class Experience(Protocol):
    """What is read of an experience: (sample, label, ...) pairs, and whose they are."""

    dataset: Any
    task_labels: Iterable[int]


class Benchmark(Protocol):
    """What is read of a benchmark; one test experience may serve all tasks."""

    train_stream: Sequence[Experience]
    test_stream: Sequence[Experience]


class _Read(NamedTuple):
    x: AnyArray
    y: npt.NDArray[np.int64]
    task: int


def from_avalanche(benchmark: Benchmark, name: str = "avalanche") -> GivenTasks:
    """Take the experiences of a benchmark as tasks, for ``simulate(data=...)``.

    A task is an experience of the training stream. Benchmarks with a task label for
    each have a head a task, and their classes are told apart by task and label;
    benchmarks with one task label for all have a single head. Samples are read once,
    through the transforms for evaluation. Images have to be in [0, 1] behind them, as
    they are standardized here: a benchmark whose usual transforms have ``Normalize``
    is made with ``eval_transform=None``.

    Args:
        benchmark: with samples of one shape: PIL images, tensors (C, H, W) of images,
            (channels, steps) of series, (columns,) of tables.
        name: what the data set is called.
    """
    train = _read(benchmark.train_stream, f"{name}: train")
    test = _read(benchmark.test_stream, f"{name}: test")
    if len(test) not in (1, len(train)):
        expected = f"{len(train)} as the training stream has, or one for all"
        raise config_error(f"{name}: test experiences", len(test), expected)
    tasks = {one.task for one in train}
    if len(tasks) not in (1, len(train)):
        expected = f"one for all {len(train)} experiences, or one for each"
        raise config_error(f"{name}: task labels", len(tasks), expected)
    classes = sorted({(one.task, label) for one in train for label in one.y.tolist()})
    x_train, y_train, of_train = _joined(train, classes, f"{name}: train")
    x_test, y_test, of_test = _joined(test, classes, f"{name}: test")
    arrays = dict(zip(ARRAYS, (x_train, y_train, x_test, y_test), strict=True))
    several = len(tasks) > 1
    names = (f"{task}/{label}" if several else str(label) for task, label in classes)
    data = checked_dataset(name, name, arrays, tuple(names))
    tested = of_test * (len(train) // len(test))
    pairs = map(TaskSamples, of_train, tested)
    return GivenTasks(data, tuple(pairs), "multi" if several else "single")


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
        # Refused here, since a grey one would pass for a series.
        raise ConfigError(
            f"benchmark: got an image with values from {x.min():g} to {x.max():g}, "
            "expected [0, 1]: make the benchmark with eval_transform=None"
        )
    return x[0] if x.shape[0] == 1 else np.moveaxis(x, 0, -1)


def _joined(
    experiences: Sequence[_Read], classes: Sequence[tuple[int, int]], where: str
) -> tuple[AnyArray, npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    shapes = {one.x.shape[1:] for one in experiences}
    if len(shapes) > 1:
        raise config_error(f"{where} shapes", sorted(shapes), "one")
    index = {pair: label for label, pair in enumerate(classes)}
    labels = []
    for one in experiences:
        for label in one.y.tolist():
            if (one.task, label) not in index:
                expected = f"one that the training samples of task {one.task} have"
                raise config_error(f"{where} label", label, expected)
            labels.append(index[one.task, label])
    ends = np.cumsum([len(one.y) for one in experiences])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return np.concatenate([one.x for one in experiences]), np.array(labels), parts
