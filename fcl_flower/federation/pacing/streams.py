"""Where each client stands in its stream of tasks, by the updates that were used."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fcl_flower.core.types import TaskStage


class Streams:
    """What the server knows of each client's own rounds and tasks.

    Attributes:
        state_lost: who was forgotten since updates were noted last.
    """

    def __init__(self) -> None:
        """Know of no client."""
        self._last: dict[int, TaskStage] = {}
        self._trained: set[tuple[int, int]] = set()
        self.state_lost = frozenset[int]()

    def last_round(self, client: int) -> int:
        """Return a client's last aggregated round in its own count; 0 for none."""
        last = self._last.get(client)
        return 0 if last is None else last.round

    def stage_for(self, client: int, stage: TaskStage) -> TaskStage:
        """Return a stage that starts its task if no update of it was aggregated yet."""
        new = (client, stage.task) not in self._trained
        return replace(stage, starts_task=stage.starts_task or new)

    def note(self, stages: Mapping[int, TaskStage]) -> None:
        """Note where clients stood whose updates were aggregated."""
        self._last.update(stages)
        self._trained.update((c, stage.task) for c, stage in stages.items())
        self.state_lost = frozenset()

    def forget(self, client: int) -> None:
        """Count a client as one that has never trained."""
        self._last.pop(client, None)
        self._trained = {pair for pair in self._trained if pair[0] != client}
        self.state_lost |= {client}

    def restore(
        self, state_lost: Iterable[int], stages: Mapping[int, TaskStage]
    ) -> None:
        """Note again what happened in a round: losses first, then updates."""
        for client in state_lost:
            self.forget(client)
        self.note(stages)
