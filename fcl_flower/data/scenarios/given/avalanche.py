"""Benchmarks of Avalanche as tasks of our clients.

Lomonaco et al., CVPR Workshops 2021, https://arxiv.org/abs/2104.00405. Nothing of the
library is imported: what is read of a benchmark is two streams of experiences, each
with a data set of (sample, label, ...) and with task labels.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ConfigError, refuse
from fcl_flower.data.datasets.arrays import ARRAYS, AnyArray, checked_dataset
from fcl_flower.data.scenarios.given.tasks import GivenTasks, TaskSamples


class Experience(Protocol):
    """What is read of an experience: its samples, and which task's they are."""

    @property
    def dataset(self) -> Any:  # noqa: ANN401 - the library's, of many types
        """Return a sequence of tuples that begin with a sample and its label."""

    @property
    def task_labels(self) -> Iterable[int]:
        """Return the labels of the tasks that the samples are of."""


class Benchmark(Protocol):
    """What is read of a benchmark."""

    @property
    def train_stream(self) -> Sequence[Experience]:
        """Return what is learned, in order."""

    @property
    def test_stream(self) -> Sequence[Experience]:
        """Return what each is tested on, or one experience for all."""


class _Read(NamedTuple):
    """An experience in arrays: samples, labels, and its one task label."""

    x: AnyArray
    y: npt.NDArray[np.int64]
    task: int


def from_avalanche(benchmark: Benchmark, name: str = "avalanche") -> GivenTasks:
    """Return the experiences of a benchmark as tasks, for ``simulate(data=...)``.

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

    Raises:
        ConfigError: the samples are not as described, task labels are shared by some
            experiences only, or the two streams do not fit together.
    """
    train = _read(benchmark.train_stream, f"{name}: train")
    test = _read(benchmark.test_stream, f"{name}: test")
    if len(test) not in (1, len(train)):
        expected = f"{len(train)} as the training stream has, or one for all"
        raise refuse(f"{name}: test experiences", len(test), expected)
    tasks = {one.task for one in train}
    if len(tasks) not in (1, len(train)):
        expected = f"one for all {len(train)} experiences, or one for each"
        raise refuse(f"{name}: task labels", len(tasks), expected)
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
    """Return the experiences of a stream in arrays."""
    return [
        _read_one(experience, f"{where} experience {number}")
        for number, experience in enumerate(stream)
    ]


def _read_one(experience: Experience, where: str) -> _Read:
    """Return the samples of an experience, as they are evaluated."""
    labels = set(experience.task_labels)
    if len(labels) != 1:
        raise refuse(f"{where}: task labels", sorted(labels), "one")
    dataset = experience.dataset
    evaluated = dataset.eval() if hasattr(dataset, "eval") else dataset
    items = [evaluated[index] for index in range(len(evaluated))]
    if not items:
        raise refuse(f"{where}: samples", 0, "one or more")
    samples = [_channels_last(np.asarray(item[0])) for item in items]
    shapes = {sample.shape for sample in samples}
    if len(shapes) > 1:
        raise refuse(f"{where}: shapes", sorted(shapes), "one")
    y = np.array([int(item[1]) for item in items], np.int64)
    return _Read(np.stack(samples), y, labels.pop())


def _channels_last(x: AnyArray) -> AnyArray:
    """Return an image (1, H, W) as (H, W) and (3, H, W) as (H, W, 3)."""
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
    """Return all samples, their labels from 0, and which are of which experience.

    Raises:
        ConfigError: a class is not known, or the samples differ in shape.
    """
    shapes = {one.x.shape[1:] for one in experiences}
    if len(shapes) > 1:
        raise refuse(f"{where} shapes", sorted(shapes), "one")
    index = {pair: label for label, pair in enumerate(classes)}
    labels = []
    for one in experiences:
        for label in one.y.tolist():
            if (one.task, label) not in index:
                expected = f"one that the training samples of task {one.task} have"
                raise refuse(f"{where} label", label, expected)
            labels.append(index[one.task, label])
    ends = np.cumsum([len(one.y) for one in experiences])
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return np.concatenate([one.x for one in experiences]), np.array(labels), parts
