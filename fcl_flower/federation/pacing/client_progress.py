"""How far each client of an asynchronous run is in its stream of tasks."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class ClientProgress:
    """How far one client is.

    Attributes:
        done: its last round whose update is aggregated, in its own count.
        due: when it replies to what it was asked, in simulated time.
        queried: the last round before which a query was made.
        failures: since its last update.
        excused: one loss of its state since its last update was not counted.
        ended_task: it shall be tested, as its last update ended a task.
        given_up: why it is asked no more; empty while it is.
        idle_since: since when nothing is asked of it, in seconds of this process.
    """

    done: int
    due: float = 0.0
    queried: int = 0
    failures: int = 0
    excused: bool = False
    ended_task: bool = False
    given_up: str = ""
    idle_since: float = field(default_factory=time.monotonic)

    def aggregated(self, *, shall_be_tested: bool) -> None:
        """Note that its next update is aggregated."""
        self.done += 1
        self.failures, self.excused = 0, False
        self.ended_task = shall_be_tested

    def to_notes(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        notes = asdict(self)
        del notes["idle_since"]
        return notes

    @classmethod
    def of_notes(cls, notes: Mapping[str, Any]) -> "ClientProgress":
        """Return what `to_notes` was made of."""
        return cls(**notes)
