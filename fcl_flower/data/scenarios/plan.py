"""A scenario's plan: which client learns what, in which order, from which samples."""

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
    """What a scenario is drawn from.

    Attributes:
        sources: the data sets; none where clients have local data.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2; 0 where tasks share out all classes.
        valid_fraction: share of a task's training samples kept for validation.
        params: settings of the scenario itself.
        max_train_per_class: training samples of each class for all together, those of
            the server included; 0 for all there are.
        max_test_per_class: likewise.
        public_fraction: share of each class's training samples that are the server's.
        public: the server's own data set.
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
        """Seed a generator for one purpose."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))

    def most_per_class(self, split: SampleSplit) -> int:
        """Look up how many samples of each class are used; 0 for all there are."""
        return self.max_train_per_class if split == "train" else self.max_test_per_class

    def shuffled_class(
        self, source: Dataset, split: SampleSplit, label: int
    ) -> Indices:
        """Draw the samples of a class that are used, in a shuffled order."""
        # By name, so that the samples are the same in whatever order data sets come.
        rng = self.rng(f"{split}/{source.name}", label)
        found = np.flatnonzero(source.split(split).y == label)
        return rng.permutation(found)[: self.most_per_class(split) or None]

    def samples(
        self, source: Dataset, split: SampleSplit, labels: Iterable[int]
    ) -> Indices:
        """Draw the samples of some classes that are used, ascending."""
        if not self.most_per_class(split):  # nothing is left out: nothing is drawn
            return np.flatnonzero(np.isin(source.split(split).y, list(labels)))
        found = [self.shuffled_class(source, split, label) for label in labels]
        return np.sort(np.concatenate(found))


@dataclass(frozen=True, slots=True)
class ConceptStream:
    """The order in which clients have concepts (Jiang et al., 2025, section V.A).

    All follows from the seed, the client and the round, so that server and client know
    the same, whichever clients take part or fail.

    Attributes:
        concepts: how many there are, at least 1.
        window: training samples that a client has in a round, at least 2.
        mean_duration: with probability ``1 / mean_duration`` a client's concept is
            drawn anew, so that it lasts so many draws on average: 1 is the paper's;
            0 gives a client all concepts at once and all of its samples.
        seed: the run's seed.
    """

    concepts: int
    window: int
    mean_duration: int
    seed: int

    def concepts_at(self, client: int, server_round: int) -> tuple[int, ...]:
        """Look up a client's concepts in a round, which is counted from 1."""
        if not self.mean_duration:
            return tuple(range(self.concepts))
        return (_concept(self, client, server_round),)

    def concept_at(self, client: int, server_round: int) -> int:
        """Look up a client's only concept in a round."""
        (concept,) = self.concepts_at(client, server_round)
        return concept

    def samples(
        self, client: int, server_round: int, concept: int, chunk: Indices
    ) -> Indices:
        """Take a client's samples in a round from its ``chunk`` of a concept.

        A cyclic window: each visit goes on behind the last one, in a shuffled order.
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
        """Describe how concepts follow each other."""
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
    # Back to the last round in which it was drawn; not by recursion, since a concept
    # may last for more rounds than Python allows calls.
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
    """One task of one client; indices are int64 and ascending.

    Attributes:
        name: data set and group, such as ``cifar100/fish``.
        dataset: name of the source; empty for local data, unknown here.
        classes: label ids of the training samples, ascending, so that a group has the
            same order of labels at each client.
        class_names: their names.
        train: indices into the source's training split.
        valid: the same, for validation; disjoint from ``train``.
        test: indices into the source's test split; with a single head also of classes
            that only other clients learn.
        group: the same for clients that learn the same classes; None where unknown.
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
        """Convert all but the indices, of which a checksum is kept.

        Of a task of local data there is no more than the name.
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
"""For each client its tasks, in the order in which it learns them."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """The streams of tasks of all clients.

    Attributes:
        name: key of the table of scenarios.
        seed: the seed it was drawn from.
        datasets: names of the clients' data sets; none where they have local data.
        classes_per_task: the same for every task; or that of the largest.
        clients: for each client its tasks in order, or its chunk of each concept.
        stream: where concepts are hidden, which client has which of them when.
        public: the server's own training samples, a task for each data set.
        merged: what (dataset, label id) pairs stand for, where not themselves.
        sources: the data sets by name, that of the server included.
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
        """The (dataset, label id) pairs of a single head, sorted.

        All that clients learn; a class of several data sets under the first of them.
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
        """Find the index of a class in a single head; -1 where it has none."""
        pair = (dataset, label)
        return self._indices.get(self.merged.get(pair, pair), -1)

    def labels_until(self, task: int) -> tuple[int, ...]:
        """List the indices in a single head of all that clients learn by a task."""
        until = chain.from_iterable(tasks[: task + 1] for tasks in self.clients)
        found = {
            self.label_index(t.dataset, label) for t in until for label in t.classes
        }
        return tuple(sorted(found))

    @property
    def class_names(self) -> dict[int, str]:
        """Names of a single head's classes by index; of several sets with theirs."""
        several = len(self.datasets) > 1
        return {
            self.label_index(task.dataset, label): f"{task.dataset}/" * several + name
            for task in chain.from_iterable(self.clients)
            for label, name in zip(task.classes, task.class_names, strict=True)
        }

    @property
    def local_data(self) -> bool:
        """Whether the clients have local data, unknown to all others."""
        return not self.datasets

    @property
    def num_labels(self) -> int:
        """Number of classes of a single head."""
        return len(self.labels)

    @property
    def num_tasks(self) -> int:
        """Number of tasks of each client, or of concepts."""
        return len(self.clients[0])

    def describe(self) -> str:
        """Format a table for people: one line a task, with its number of samples.

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
        what = (
            f"{self.num_tasks} tasks of {up_to}{self.classes_per_task} classes"
            if self.stream is None
            else f"{self.num_tasks} hidden concepts, {self.stream.describe()}"
        )
        title = (
            f"{self.name} on {', '.join(self.datasets)}, seed {self.seed}: "
            f"{len(self.clients)} clients, {what}, {self.num_labels} classes in all"
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
    """Match classes of one name in different data sets, by (dataset, label id).

    They are one class, that of the first data set of the group that has it. ``text``
    has groups of names of data sets, such as ``yelp=amazon,a=b=c``.
    """
    # Settings are chosen on held-out samples of the sets that the text names.
    known = {source.name.removeprefix(HELD_OUT): source for source in sources}
    groups = [
        [name.strip() for name in group.split("=")]
        for group in text.split(",")
        if group.strip()
    ]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in known:
            expected = f"data sets of the run, not {name!r}: {', '.join(known)}"
            raise config_error("merge_labels", text, expected)
    if len(set(names)) < len(names) or any(len(group) == 1 for group in groups):
        expected = "groups of two or more names, each of them once"
        raise config_error("merge_labels", text, expected)
    merged = {}
    for group in groups:
        first: dict[str, tuple[str, int]] = {}
        for name in group:
            class_names = known[name].class_names
            if first and first.keys().isdisjoint(class_names):
                expected = f"a class name that {name!r} has in common with those before"
                raise config_error("merge_labels", text, expected)
            for label, class_name in enumerate(class_names):
                own = (known[name].name, label)
                one = first.setdefault(class_name, own)
                if one != own:
                    merged[own] = one
    return MappingProxyType(merged)
