"""A scenario's plan: which client learns what, in which order, from which samples."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.data.scenarios.concept_stream import ConceptStream


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One task of one client.

    Attributes:
        name: data set and group, such as ``cifar100/fish``.
        dataset: name of the source; empty where it is local data, of which
            nothing else is known here.
        classes: label ids in the source, ascending, so that a group has the same
            order of labels at each client; those of its training samples.
        class_names: their names.
        train: int64 indices into the source's training split, ascending.
        valid: the same, for validation; disjoint from ``train``.
        test: int64 indices into the source's test split, ascending; with a single head
            also of classes that only other clients learn.
        group: number of the class group within the scenario; two clients with the
            same number learn the same classes. None where
            it is not known.
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
        """Return everything but the indices, of which only a checksum is kept.

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
        datasets: names of the sources; none where clients have local data.
        classes_per_task: the same for every task; or that of the largest.
        clients: for each client its tasks, in the order in which it learns them, or
            its chunk of each concept.
        stream: where concepts are hidden, which client has which of them when.
        public: the server's own training samples, a task for each data set; never a
            client's.
        merged: what (dataset, label id) pairs stand for in a single head, where it is
            not themselves.
    """

    name: str
    seed: int
    datasets: tuple[str, ...]
    classes_per_task: int
    clients: TaskStreams
    stream: ConceptStream | None = None
    public: tuple[Task, ...] = ()
    merged: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    @cached_property
    def labels(self) -> tuple[tuple[str, int], ...]:
        """Return the (dataset, label id) pairs of a single head, sorted.

        All that clients learn; a class of several data sets under the first of them.
        """
        return tuple(
            sorted(
                {
                    self.merged.get((task.dataset, label), (task.dataset, label))
                    for tasks in self.clients
                    for task in tasks
                    for label in task.classes
                }
            )
        )

    @cached_property
    def _indices(self) -> dict[tuple[str, int], int]:
        return {pair: index for index, pair in enumerate(self.labels)}

    def label_index(self, dataset: str, label: int) -> int:
        """Return the index of a class in a single head; -1 where it has none."""
        pair = (dataset, label)
        return self._indices.get(self.merged.get(pair, pair), -1)

    def labels_until(self, task: int) -> tuple[int, ...]:
        """Return the indices in a single head of all that clients learn by a task."""
        found = {
            self.label_index(one.dataset, label)
            for tasks in self.clients
            for one in tasks[: task + 1]
            for label in one.classes
        }
        return tuple(sorted(found))

    @property
    def local_data(self) -> bool:
        """Return whether the clients have local data, unknown to all others."""
        return not self.datasets

    @property
    def num_labels(self) -> int:
        """Return the number of classes of a single head."""
        return len(self.labels)

    @property
    def num_tasks(self) -> int:
        """Return the number of tasks of each client, or of concepts."""
        return len(self.clients[0])

    def describe(self) -> str:
        """Return a table for people: one line a task, with its number of samples.

        The column ``clients`` counts the clients that learn the same classes.
        """
        if self.local_data:
            return (
                f"{self.name}: {len(self.clients)} clients with local data, "
                f"{self.num_tasks} tasks of up to {self.classes_per_task} classes"
            )
        shared = Counter(
            group for tasks in self.clients for group in {task.group for task in tasks}
        )
        rows = [["client", "task", "name", "clients", "train", "valid", "test", ""]]
        for client, tasks in enumerate(self.clients):
            for number, task in enumerate(tasks):
                counts = (len(task.train), len(task.valid), len(task.test))
                rows.append(
                    [
                        str(client),
                        str(number),
                        task.name,
                        str(shared[task.group]),
                        *map(str, counts),
                        ", ".join(task.class_names),
                    ]
                )
        for task in self.public:
            count = f"{len(task.classes)} classes"
            size = str(len(task.train))
            rows.append(["server", "", task.name, "", size, "0", "0", count])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (2, 7) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        sizes = {len(task.classes) for tasks in self.clients for task in tasks}
        up_to = "up to " if len(sizes) > 1 else ""
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
        """Return what `save` writes."""
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
