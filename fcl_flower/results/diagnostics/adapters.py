"""What the scalars of a run tell of foreign adapters: which were chosen, and used.

A client's ``attention/c/t`` is its weight for the adapter of client c's task t. The
server half's ``overlap/C/T/c/t`` is how alike client C's task T, which begins, and
client c's finished task t are: what selective inter-client transfer chooses by
(FedSeIT, Chaudhary et al., Findings of EMNLP 2022, section 2.3). A client's
``adapter_density`` is the share of entries that it keeps of a finished task's adapter:
of one without entries nobody learns anything.
"""

import re
from collections.abc import Mapping

from fcl_flower.core.errors import WireError
from fcl_flower.data.scenarios.registry import Scenario, Task

ATTENTION = re.compile(r"attention/([0-9]{1,9})/([0-9]{1,9})")
DENSITY = "adapter_density"
OVERLAP = re.compile(r"overlap/([0-9]+)/([0-9]+)/([0-9]+)/([0-9]+)")

TaskId = tuple[int, int]
"""A client and the number of one of its tasks."""


class AdapterDiagnostics:
    """Collects the scalars while a run goes on, and lists them by task at its end."""

    def __init__(self, scenario: Scenario) -> None:
        """Begin with nothing; ``scenario`` says what the tasks are."""
        self._streams = scenario.clients
        self._attention: dict[TaskId, dict[TaskId, float]] = {}
        self._overlap: dict[TaskId, dict[TaskId, float]] = {}
        self._density: dict[TaskId, float] = {}

    def check_metrics(self, scalars: Mapping[str, float]) -> None:
        """Refuse a client's scalars that cannot be listed.

        Raises:
            WireError: an attention weight is negative, or of nobody's adapter; or a
                density is no fraction.
        """
        if not 0 <= (density := scalars.get(DENSITY, 0)) <= 1:
            raise WireError(f"{DENSITY}: expected a value in [0, 1], got {density}")
        streams = self._streams
        for (client, task), weight in _attention(scalars).items():
            if client >= len(streams) or task >= len(streams[client]) or weight < 0:
                raise WireError(
                    f"attention/{client}/{task}: expected a weight of at least 0 for "
                    f"one of {len(streams)} clients and its tasks, got {weight}"
                )

    def add(
        self,
        replies: Mapping[TaskId, Mapping[str, float]],
        diagnostics: Mapping[str, float],
    ) -> None:
        """Keep what a round says; what a later round of the task says replaces it.

        Args:
            replies: scalars by client and the task that it trained on, checked.
            diagnostics: scalars of the server half.
        """
        for place, scalars in replies.items():
            weights = _attention(scalars)
            if weights:
                self._attention[place] = weights
            if DENSITY in scalars:
                self._density[place] = scalars[DENSITY]
        for name, overlap in diagnostics.items():
            if match := OVERLAP.fullmatch(name):
                client, new, other, earlier = map(int, match.groups())
                candidates = self._overlap.setdefault((client, new), {})
                candidates[other, earlier] = overlap

    def remarks(self) -> dict[str, str]:
        """Return what a reader should know of the adapters; nothing without any."""
        if not self._density:
            return {}
        share = sum(self._density.values()) / len(self._density)
        empty = sum(density == 0 for density in self._density.values())
        return {
            "adapters": f"{100 * share:.2g} % of the entries are kept when a task "
            f"ends; {empty} of {len(self._density)} adapters are empty"
        }

    def attention(self) -> list[dict[str, object]]:
        """Return what ``attention.json`` holds: tasks and the weights they give."""
        return [
            {
                **self._named(place),
                "foreign": [
                    {
                        **self._named(other),
                        "weight": weight,
                        "same_group": _same_group(self._task(place), self._task(other)),
                    }
                    for other, weight in sorted(weights.items())
                ],
            }
            for place, weights in sorted(self._attention.items())
        ]

    def overlap(self) -> list[dict[str, object]]:
        """Return what ``overlap.json`` holds: tasks and the candidates for each.

        A candidate counts as chosen if the client's attention has a weight for it.
        """
        return [
            {
                **self._named(place),
                "candidates": [
                    {
                        **self._named(other),
                        "overlap": overlap,
                        "chosen": other in self._attention.get(place, {}),
                        "same_classes": _shared(self._task(place), self._task(other)),
                    }
                    for other, overlap in sorted(candidates.items())
                ],
            }
            for place, candidates in sorted(self._overlap.items())
        ]

    def _task(self, place: TaskId) -> Task:
        client, task = place
        return self._streams[client][task]

    def _named(self, place: TaskId) -> dict[str, object]:
        client, task = place
        return {"client": client, "task": task, "task_name": self._task(place).name}


def _attention(scalars: Mapping[str, float]) -> dict[TaskId, float]:
    """Return weights by (client, task) from scalars named ``attention/c/t``."""
    matches = ((ATTENTION.fullmatch(name), value) for name, value in scalars.items())
    return {(int(m[1]), int(m[2])): value for m, value in matches if m}


def _same_group(new: Task, other: Task) -> bool | None:
    """Return whether both learn the same classes; None where nobody knows."""
    return None if new.group is None else other.group == new.group


def _shared(new: Task, other: Task) -> float | None:
    """Return which fraction of the new task's classes the other has too, by name.

    None where nobody knows.
    """
    classes = set(new.class_names)
    if not classes:
        return None
    return len(classes.intersection(other.class_names)) / len(classes)
