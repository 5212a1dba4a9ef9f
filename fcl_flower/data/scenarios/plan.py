"""The plan of a scenario: each client's tasks, their order and their samples."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.data.datasets import HELD_OUT, Dataset
from fcl_flower.data.imbalance import unbalanced
from fcl_flower.data.partition import Indices

SampleSplit: TypeAlias = Literal["train", "test"]

P_co = TypeVar("P_co", bound=Params, default=Params, covariant=True)


@dataclass(frozen=True, slots=True)
class ScenarioSpec(Generic[P_co]):
    """The data sets, sizes and settings from which a scenario is drawn.

    Attributes:
        sources: the data sets; empty if clients have local data.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2; 0 if the tasks share out all classes.
        valid_fraction: share of a task's training samples kept for validation.
        params: settings of the scenario itself.
        max_train_per_class: training samples of each class for all clients and the
            server together; 0 for no limit.
        max_test_per_class: test samples of each class; 0 for no limit.
        public_fraction: share of each class's training samples that the server gets.
        public: the server's own data set, or None.
        seed: the run's seed.
    """

    sources: tuple[Dataset, ...]
    clients: int
    tasks: int
    classes_per_task: int
    valid_fraction: float
    params: P_co
    max_train_per_class: int = 0
    max_test_per_class: int = 0
    public_fraction: float = 0.0
    public: Dataset | None = None
    seed: int = 0

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Make a random generator for one purpose, seeded by the run's seed."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))

    def most_per_class(self, split: SampleSplit) -> int:
        """Return how many samples of each class are used; 0 for no limit."""
        return self.max_train_per_class if split == "train" else self.max_test_per_class

    def shuffled_class(
        self, source: Dataset, split: SampleSplit, label: int
    ) -> Indices:
        """Draw the samples of a class that are used, in a shuffled order."""
        # The seed depends on the data set's name, not on the order of the data sets.
        rng = self.rng(f"{split}/{source.name}", label)
        samples = np.flatnonzero(source.split(split).y == label)
        return rng.permutation(samples)[: self.most_per_class(split) or None]

    def samples(
        self, source: Dataset, split: SampleSplit, labels: Iterable[int]
    ) -> Indices:
        """Draw the samples of ``labels`` that are used, in ascending order."""
        if not self.most_per_class(split):  # all samples are used, without a draw
            return np.flatnonzero(np.isin(source.split(split).y, list(labels)))
        by_class = [self.shuffled_class(source, split, label) for label in labels]
        return np.sort(np.concatenate(by_class))


@dataclass(frozen=True, slots=True)
class ConceptStream:
    """The order in which clients meet concepts (Jiang et al., 2025, section V.A).

    The seed, the client and the round determine a concept. So server and client agree
    on it, whichever clients take part or fail.

    Attributes:
        concepts: number of concepts, at least 1.
        window: training samples that a client has in a round, at least 2.
        mean_duration: number of draws for which a concept lasts on average, since it
            is drawn anew with probability ``1 / mean_duration``. The paper has 1. With
            0 a client has all concepts and all its samples at once.
        seed: the run's seed.
    """

    concepts: int
    window: int
    mean_duration: int
    seed: int

    def concepts_at(self, client: int, server_round: int) -> tuple[int, ...]:
        """Find a client's concepts in a round, which is counted from 1."""
        if not self.mean_duration:
            return tuple(range(self.concepts))
        return (_concept(self, client, server_round),)

    def concept_at(self, client: int, server_round: int) -> int:
        """Find a client's only concept in a round."""
        (concept,) = self.concepts_at(client, server_round)
        return concept

    def samples(
        self, client: int, server_round: int, concept: int, chunk: Indices
    ) -> Indices:
        """Select a client's samples of a round from its ``chunk`` of a concept.

        A window moves over the shuffled chunk, cyclically: each round with the concept
        continues where the previous one ended.
        """
        if not self.mean_duration:
            return chunk
        size = min(self.window, len(chunk))
        rounds = range(1, server_round)
        earlier = sum(_concept(self, client, number) == concept for number in rounds)
        key = derive(self.seed, "stream-order", client, concept)
        shuffled = np.random.default_rng(key).permutation(chunk)
        window = (earlier * size + np.arange(size)) % len(chunk)
        return np.sort(shuffled[window])

    def describe(self) -> str:
        """Describe how the concepts of a client follow each other."""
        lasts = self.mean_duration
        if not lasts:
            return "all at once"
        how = "one a round" if lasts == 1 else f"one for {lasts} rounds or so"
        return f"{how}, {self.window} samples at a time"

    def to_dict(self) -> dict[str, int]:
        """Convert to the fields of ``scenario.json``."""
        return {"window": self.window, "mean_duration": self.mean_duration}


@lru_cache(maxsize=100_000)
def _concept(stream: ConceptStream, client: int, server_round: int) -> int:
    # The loop goes back to the round in which the concept was drawn. Recursion would
    # fail when a concept lasts longer than Python's limit of calls.
    number = server_round
    while True:
        draw = np.random.default_rng(
            derive(stream.seed, "stream-concept", client, number)
        )
        if number == 1 or draw.random() < 1 / stream.mean_duration:
            return int(draw.integers(stream.concepts))
        number -= 1


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A task of a client; indices are int64 and ascending.

    Attributes:
        name: data set and group, such as ``cifar100/fish``.
        dataset: name of the source; empty for local data, which only the client knows.
        classes: label ids of the training samples, ascending, so that a group has the
            same order of labels at each client.
        class_names: names of ``classes``.
        train: indices of training samples in the source's training split.
        valid: indices of validation samples in the same split, disjoint from ``train``.
        test: indices into the source's test split; with a single head they include
            classes that only other clients learn.
        group: number shared by clients that learn the same classes; None if unknown.
    """

    name: str
    dataset: str
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    train: npt.NDArray[np.int64]
    valid: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    group: int | None

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary in which a checksum stands for the indices.

        A task of local data gives its name only.
        """
        if not self.dataset:
            return {"name": self.name}
        digest = hashlib.sha256()
        counts = {}
        for split in ("train", "valid", "test"):
            indices: npt.NDArray[np.int64] = getattr(self, split)
            digest.update(len(indices).to_bytes(8, "little"))
            digest.update(indices.astype("<i8").tobytes())
            counts[split] = len(indices)
        return {
            "name": self.name,
            "dataset": self.dataset,
            "group": self.group,
            "classes": list(self.classes),
            "class_names": list(self.class_names),
            **counts,
            "sha256": digest.hexdigest(),
        }


TaskStreams: TypeAlias = tuple[tuple[Task, ...], ...]
"""The tasks of each client, in the order in which it learns them."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """The streams of tasks of all clients.

    Attributes:
        name: name of the scenario in the registry.
        seed: seed of the draw.
        datasets: names of the clients' data sets; empty if they have local data.
        classes_per_task: number of classes of each task, or of the largest task.
        clients: each client's tasks in order, or its chunk of each concept.
        stream: order of hidden concepts; None if tasks are known.
        public: the server's own training samples, a task for each data set.
        merged: (dataset, label id) pairs to the pair whose class they share, for
            classes that are merged into another data set's class.
        sources: data sets of clients and server by name.
    """

    name: str
    seed: int
    datasets: tuple[str, ...]
    classes_per_task: int
    clients: TaskStreams
    stream: ConceptStream | None = None
    public: tuple[Task, ...] = ()
    merged: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    sources: Mapping[str, Dataset] = field(default_factory=dict, repr=False)

    @cached_property
    def labels(self) -> tuple[tuple[str, int], ...]:
        """The sorted (dataset, label id) pairs of a single head.

        They cover all classes that clients learn. A merged class stands under the first
        of its data sets.
        """
        learned = {
            (task.dataset, label)
            for task in chain.from_iterable(self.clients)
            for label in task.classes
        }
        return tuple(sorted({self.merged.get(pair, pair) for pair in learned}))

    @cached_property
    def unbalanced(self) -> bool:
        """Whether any client's test set has unbalanced classes; False if unknown."""
        return any(
            unbalanced(self.sources[task.dataset].split("test").y[task.test])
            for task in chain.from_iterable(self.clients)
            if task.dataset
        )

    @cached_property
    def _indices(self) -> dict[tuple[str, int], int]:
        return {pair: index for index, pair in enumerate(self.labels)}

    def label_index(self, dataset: str, label: int) -> int:
        """Find the index of a class in a single head; -1 if it has none."""
        pair = (dataset, label)
        return self._indices.get(self.merged.get(pair, pair), -1)

    def labels_until(self, task: int) -> tuple[int, ...]:
        """List the indices in a single head of all classes learnt up to a task."""
        learnt = chain.from_iterable(tasks[: task + 1] for tasks in self.clients)
        indices = {
            self.label_index(t.dataset, label) for t in learnt for label in t.classes
        }
        return tuple(sorted(indices))

    @property
    def class_names(self) -> dict[int, str]:
        """The names of a single head's classes by index.

        If they are of several data sets, a name begins with its data set's name.
        """
        several = len({dataset for dataset, _ in self.labels}) > 1
        names = {}
        for task in chain.from_iterable(self.clients):
            for label, name in zip(task.classes, task.class_names, strict=True):
                index = self.label_index(task.dataset, label)
                names[index] = f"{self.labels[index][0]}/" * several + name
        return names

    @property
    def local_data(self) -> bool:
        """Whether the clients have local data, which only each client itself knows."""
        return not self.datasets

    @property
    def num_labels(self) -> int:
        """The number of classes of a single head."""
        return len(self.labels)

    @property
    def num_tasks(self) -> int:
        """The number of tasks of each client, or of concepts."""
        return len(self.clients[0])

    def describe(self) -> str:
        """Format a table for people, with one line a task and its number of samples.

        The column ``clients`` counts the clients that learn the same classes.
        """
        if self.local_data:
            return (
                f"{self.name}: {len(self.clients)} clients with local data, "
                f"{self.num_tasks} tasks of up to {self.classes_per_task} classes"
            )
        groups = ({task.group for task in tasks} for tasks in self.clients)
        shared = Counter(chain.from_iterable(groups))
        rows = [["client", "task", "name", "clients", "train", "valid", "test", ""]]
        for client, tasks in enumerate(self.clients):
            for number, task in enumerate(tasks):
                sizes = map(len, (task.train, task.valid, task.test))
                row = (client, number, task.name, shared[task.group], *sizes)
                rows.append([*map(str, row), ", ".join(task.class_names)])
        for task in self.public:
            row = ("server", "", task.name, "", len(task.train), 0, 0)
            rows.append([*map(str, row), f"{len(task.classes)} classes"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (2, 7) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        equal = len({len(t.classes) for t in chain.from_iterable(self.clients)}) == 1
        up_to = "" if equal else "up to "
        contents = (
            f"{self.num_tasks} tasks of {up_to}{self.classes_per_task} classes"
            if self.stream is None
            else f"{self.num_tasks} hidden concepts, {self.stream.describe()}"
        )
        title = (
            f"{self.name} on {', '.join(self.datasets)}, seed {self.seed}: "
            f"{len(self.clients)} clients, {contents}, {self.num_labels} classes in all"
        )
        return "\n".join([title, *lines])

    def to_dict(self) -> dict[str, Any]:
        """Convert to the content of ``scenario.json``."""
        return {
            "name": self.name,
            "seed": self.seed,
            "datasets": list(self.datasets),
            "classes_per_task": self.classes_per_task,
            "clients": [[task.to_dict() for task in tasks] for tasks in self.clients],
            **({} if self.stream is None else {"stream": self.stream.to_dict()}),
            **({"public": [t.to_dict() for t in self.public]} if self.public else {}),
        }

    def save(self, path: Path) -> None:
        """Write the plan as JSON; the same plan gives the same bytes."""
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")


def merged_labels(
    text: str, sources: Sequence[Dataset]
) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Merge classes of one name in different data sets.

    Args:
        text: groups of names of data sets, such as ``yelp=amazon,a=b=c``.
        sources: the data sets of the run.

    Returns:
        each merged (dataset, label id) pair to the pair of the first data set of the
        group that has a class of this name.
    """
    # A held-out variant counts under the name of the data set that it is made of.
    by_name = {source.name.removeprefix(HELD_OUT): source for source in sources}
    groups = [
        [name.strip() for name in group.split("=")]
        for group in text.split(",")
        if group.strip()
    ]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in by_name:
            expected = f"data sets of the run, not {name!r}: {', '.join(by_name)}"
            raise config_error("merge_labels", text, expected)
    if len(set(names)) < len(names) or any(len(group) == 1 for group in groups):
        expected = "groups of two or more names, each of them once"
        raise config_error("merge_labels", text, expected)
    merged: dict[tuple[str, int], tuple[str, int]] = {}
    for group in groups:
        seen: set[str] = set()
        for name in group:
            class_names = by_name[name].class_names
            if seen and seen.isdisjoint(class_names):
                expected = f"a class name that {name!r} has in common with those before"
                raise config_error("merge_labels", text, expected)
            seen.update(class_names)
        merged |= same_classes([by_name[name] for name in group])
    return MappingProxyType(merged)


def same_classes(
    sources: Iterable[Dataset],
) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Map (dataset, label id) pairs to the first pair that has the same class name."""
    first: dict[str, tuple[str, int]] = {}
    merged = {}
    for source in sources:
        for label, name in enumerate(source.class_names):
            pair = (source.name, label)
            if first.setdefault(name, pair) != pair:
                merged[pair] = first[name]
    return MappingProxyType(merged)
