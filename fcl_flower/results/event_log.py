"""All that happened in a run, event by event: what its record is made of again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fcl_flower.core.errors import WireError

BY_CLIENT = {"scores", "replies", "failed", "stages"}
"""What an event tells by client, whose numbers JSON has as text."""


class Event(NamedTuple):
    """Something that a round brought.

    Attributes:
        what: ``evaluated`` or ``trained``.
        round: counted from 1.
        told: what is known of it, by name.
    """

    what: str
    round: int
    told: dict[str, Any]


class EventLog:
    """A file with one event a line, each on the disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path

    def clear(self) -> None:
        """Begin anew."""
        self._path.write_text("")

    def add(self, what: str, server_round: int, told: Mapping[str, Any]) -> None:
        """Keep an event, before the state that it belongs to is kept."""
        event = {"what": what, "round": server_round, "told": told}
        with self._path.open("a") as file:
            file.write(json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def until(self, last: int) -> list[Event]:
        """Return what happened up to the end of round ``last``; forget the rest.

        Raises:
            WireError: the file is damaged or ends earlier.
        """
        events, kept = [], []
        try:
            for line in self._path.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # the process ended in the middle of it
                found = json.loads(line)
                if found["round"] > last:
                    break
                events.append(Event(found["what"], found["round"], _read(found)))
                kept.append(line)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WireError(f"{self._path}: is damaged ({error!r})") from error
        rounds = sum(event.what == "trained" for event in events)
        if rounds != last:
            raise WireError(
                f"{self._path}: expected {last} rounds, where the checkpoint stands, "
                f"got {rounds}"
            )
        temporary = self._path.with_suffix(".new")
        temporary.write_text("".join(kept))
        temporary.replace(self._path)
        return events


def _read(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {int(client): value for client, value in values.items()}
        if key in BY_CLIENT
        else values
        for key, values in found["told"].items()
    }
