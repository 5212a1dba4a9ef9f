"""Foreign adapters: which of them a task could choose from, and which it used.

Reads ``attention/c/t``, ``adapter_density`` and ``overlap/C/T/c/t`` (see the package).
The overlap is what selective inter-client transfer chooses by (FedSeIT, Chaudhary et
al., Findings of EMNLP 2022, section 2.3). From an adapter of density 0 no other client
can learn anything.
"""

import re
from collections.abc import Mapping

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.data.scenarios.registry import Scenario, Task
from fcl_flower.results.diagnostics.base import Scalars, TaskId

ATTENTION = re.compile(r"attention/([0-9]{1,9})/([0-9]{1,9})")
DENSITY = "adapter_density"
OVERLAP = re.compile(r"overlap/([0-9]+)/([0-9]+)/([0-9]+)/([0-9]+)")


class AdapterDiagnostics:
    """Writes ``attention.json`` and ``overlap.json``, one entry a task.

    What a later round says of a task replaces what an earlier one said.
    """

    def __init__(self, scenario: Scenario) -> None:
        """Begin with nothing; ``scenario`` says what the tasks are."""
        self._streams = scenario.clients
        self._attention: dict[TaskId, dict[TaskId, float]] = {}
        self._overlap: dict[TaskId, dict[TaskId, float]] = {}
        self._density: dict[TaskId, float] = {}

    def check(self, client_metrics: Scalars) -> None:
        """Refuse weights and densities that cannot be listed.

        Raises:
            WireError: an attention weight is negative, or is that of a task which does
                not exist; or a density is no fraction.
        """
        if not 0 <= (density := client_metrics.get(DENSITY, 0)) <= 1:
            raise WireError(f"{DENSITY}: got {density}, expected a value in [0, 1]")
        for source, weight in _attention_weights(client_metrics).items():
            if not self._exists(source) or weight < 0:
                raise WireError(
                    f"attention/{source[0]}/{source[1]}: got {weight}, expected a "
                    f"weight of at least 0 for one of {len(self._streams)} clients and "
                    "its tasks"
                )

    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        """Keep the weights and densities of clients and the overlaps of the server.

        Raises:
            ContractError: an overlap is that of a task which does not exist.
        """
        for task_id, scalars in client_metrics.items():
            if weights := _attention_weights(scalars):
                self._attention[task_id] = weights
            if DENSITY in scalars:
                self._density[task_id] = scalars[DENSITY]
        for name, overlap in server_metrics.items():
            if match := OVERLAP.fullmatch(name):
                client, task, other, finished = map(int, match.groups())
                new, candidate = (client, task), (other, finished)
                if not (self._exists(new) and self._exists(candidate)):
                    raise ContractError(
                        f"{name}: got numbers of a task that does not exist, expected "
                        f"those of {len(self._streams)} clients and their tasks"
                    )
                self._overlap.setdefault(new, {})[candidate] = overlap

    def files(self) -> dict[str, object]:
        """Return ``attention.json`` and ``overlap.json``; neither where it is empty."""
        found = {"attention.json": self._attended(), "overlap.json": self._compared()}
        return {name: entries for name, entries in found.items() if entries}

    def summary(self) -> dict[str, object]:
        """Return nothing: all that is known is in the files and the remarks."""
        return {}

    def remarks(self) -> dict[str, str]:
        """Return how sparse the adapters are; nothing where no density is known."""
        if not self._density:
            return {}
        mean = sum(self._density.values()) / len(self._density)
        empty = sum(density == 0 for density in self._density.values())
        return {
            "adapters": f"{100 * mean:.2g} % of the entries are kept when a task "
            f"ends; {empty} of {len(self._density)} adapters are empty"
        }

    def _attended(self) -> list[dict[str, object]]:
        """Return every task with the weights that it gives to foreign adapters."""
        return [
            {
                **self._named(task_id),
                "foreign": [
                    {
                        **self._named(source),
                        "weight": weight,
                        "same_group": _same_group(
                            self._task(task_id), self._task(source)
                        ),
                    }
                    for source, weight in sorted(weights.items())
                ],
            }
            for task_id, weights in sorted(self._attention.items())
        ]

    def _compared(self) -> list[dict[str, object]]:
        """Return every new task with its candidates.

        A candidate counts as chosen if the client's attention has a weight for it.
        """
        return [
            {
                **self._named(task_id),
                "candidates": [
                    {
                        **self._named(candidate),
                        "overlap": overlap,
                        "chosen": candidate in self._attention.get(task_id, {}),
                        "same_classes": _shared_fraction(
                            self._task(task_id), self._task(candidate)
                        ),
                    }
                    for candidate, overlap in sorted(candidates.items())
                ],
            }
            for task_id, candidates in sorted(self._overlap.items())
        ]

    def _exists(self, task_id: TaskId) -> bool:
        client, task = task_id
        return client < len(self._streams) and task < len(self._streams[client])

    def _task(self, task_id: TaskId) -> Task:
        client, task = task_id
        return self._streams[client][task]

    def _named(self, task_id: TaskId) -> dict[str, object]:
        client, task = task_id
        return {"client": client, "task": task, "task_name": self._task(task_id).name}


def _attention_weights(scalars: Scalars) -> dict[TaskId, float]:
    """Return the weights from scalars named ``attention/c/t``, by (c, t)."""
    matches = ((ATTENTION.fullmatch(name), value) for name, value in scalars.items())
    return {(int(m[1]), int(m[2])): value for m, value in matches if m}


def _same_group(new: Task, other: Task) -> bool | None:
    """Return whether both learn the same classes; None where it is not known."""
    return None if new.group is None else other.group == new.group


def _shared_fraction(new: Task, other: Task) -> float | None:
    """Return which fraction of the new task's classes the other has too, by name.

    None where the classes are not known.
    """
    classes = set(new.class_names)
    if not classes:
        return None
    return len(classes.intersection(other.class_names)) / len(classes)
