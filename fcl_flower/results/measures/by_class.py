"""What clients' counts by class say: balanced accuracy, macro F1 and each class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Evaluation
from fcl_flower.data.scenarios.plan import Scenario, Task
from fcl_flower.results.metrics import (
    Accuracy,
    Counts,
    f1,
    mean_measured,
    mean_over_clients,
    precision,
    recall,
)

NOTHING: Counts = np.zeros(3, np.int64)


class ClassMeasures:
    """Collects the counts of a run's clients; says what they come to at its end.

    Attributes:
        classes: by how many samples are counted: the logits of the network.
    """

    def __init__(
        self,
        scenario: Scenario,
        classes: int,
        *,
        single_head: bool,
        names: Sequence[str] = (),
    ) -> None:
        """Collect nothing yet.

        Args:
            scenario: the tasks of every client.
            classes: logits of the network.
            single_head: they stand for the same classes in every task.
            names: of the classes of a single head, where the scenario has none.
        """
        self.classes = classes
        self._scenario, self._single = scenario, single_head
        self._names = dict(enumerate(names)) or _names_of(scenario)
        self._last: dict[int, tuple[int, Counts]] = {}

    def check(self, client: int, found: Evaluation) -> None:
        """Refuse counts of other samples than a client's.

        Raises:
            WireError: where the server knows how many there are, and they are others.
        """
        if self._scenario.local_data:
            return
        samples = np.array(found.by_class).sum(2)[:, 1].tolist()
        tasks = self._scenario.clients[client][: len(samples)]
        expected = [len(task.test) for task in tasks]
        if samples != expected:
            raise WireError(f"tested: expected {expected} samples, got {samples}")

    def add(self, row: int, scores: Mapping[int, Evaluation]) -> None:
        """Add the counts of an evaluation, which take the place of earlier ones.

        Args:
            row: that its accuracies have in a client's matrix.
            scores: by client.
        """
        for client, found in scores.items():
            counts = np.array(found.by_class, np.int64)  # (tasks, 3, classes)
            self._last[client] = row, counts.swapaxes(0, 1)

    def summary(self) -> dict[str, Any]:
        """Return what is known of the last evaluation, by key of the summary.

        ``balanced_accuracy`` is the mean of `recall` over the classes of a task,
        ``macro_f1`` that of `f1`; both the mean over tasks, and over clients. None
        where no client was tested after the last task.
        """
        last = self._scenario.num_tasks - 1
        known = {c: counts for c, (row, counts) in self._last.items() if row == last}
        return {
            "balanced_accuracy": _mean([recall(one) for one in known.values()]),
            "macro_f1": _mean([f1(one) for one in known.values()]),
            "per_class": self._each(known),
        }

    def _each(self, known: Mapping[int, Counts]) -> list[dict[str, Any]]:
        """Return what is known of each class that has samples, over all clients."""
        total: dict[str, Counts] = {}
        for client, counts in sorted(known.items()):
            for task, label in np.argwhere(counts.any(0)).tolist():
                name = self._name(client, task, label)
                total[name] = total.get(name, NOTHING) + counts[:, task, label]
        return [
            {
                "name": name,
                "tested": int(counts[1]),
                "recall": _or_none(recall(counts)),
                "precision": _or_none(precision(counts)),
                "f1": _or_none(f1(counts)),
            }
            for name, counts in total.items()
            if counts[1]
        ]

    def _name(self, client: int, task: int, label: int) -> str:
        """Return what a logit stands for; its number where only clients know."""
        if self._single:
            return self._names[label]
        names = _names(self._scenario, self._scenario.clients[client][task])
        return names[label] if label < len(names) else f"task {task}, class {label}"


def _names(scenario: Scenario, task: Task) -> list[str]:
    """Return the names of a task's classes, with their data set if there are more."""
    source = f"{task.dataset}/" if len(scenario.datasets) > 1 else ""
    return [source + name for name in task.class_names]


def _names_of(scenario: Scenario) -> dict[int, str]:
    """Return the names of the classes of a single head, by their place in it."""
    return {
        scenario.label_index(task.dataset, label): name
        for tasks in scenario.clients
        for task in tasks
        for label, name in zip(task.classes, _names(scenario, task), strict=True)
    }


def _mean(by_client: list[Accuracy]) -> float | None:
    """Return the mean over classes, tasks and clients; None if nothing is known."""
    if not by_client:
        return None
    return _or_none(mean_over_clients(mean_measured(np.array(by_client), axis=2)))


def _or_none(value: float | Accuracy) -> float | None:
    """Return a number, None for NaN, which JSON does not know."""
    return None if np.isnan(value) else float(value)
