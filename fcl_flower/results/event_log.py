"""The events of a run, one a line: what its record is restored from."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fcl_flower.core.errors import WireError

ROUND: Final = "trained"
EVALUATION: Final = "evaluated"
BEFORE_AGGREGATION: Final = "evaluated before aggregation"

BY_CLIENT = {"scores", "replies", "failed", "stages"}
"""Parts of an event that are by client, whose number JSON keeps as text."""


class Event(NamedTuple):
    """A finished round or an evaluation.

    Attributes:
        name: `ROUND`, `EVALUATION` or `BEFORE_AGGREGATION`.
        round: counted from 1.
        content: what is known of it, by name.
    """

    name: str
    round: int
    content: dict[str, Any]


class EventLog:
    """A file with one event a line, each on the disk before the run goes on."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path

    def clear(self) -> None:
        """Remove all events."""
        self._path.write_text("")

    def add(self, name: str, server_round: int, content: Mapping[str, Any]) -> None:
        """Append an event and wait until it is on the disk."""
        event = {"what": name, "round": server_round, "told": content}
        with self._path.open("a") as file:
            file.write(json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def until(self, last: int) -> list[Event]:
        """Return the events up to the end of round ``last``; remove the later ones.

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
                content = _with_client_numbers(found["told"])
                events.append(Event(found["what"], found["round"], content))
                kept.append(line)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: got {error!r}, expected the events of a run"
            ) from error
        rounds = sum(event.name == ROUND for event in events)
        if rounds != last:
            raise WireError(
                f"{self._path}: got {rounds} rounds, expected {last}, as many as the "
                "checkpoint has"
            )
        temporary = self._path.with_suffix(".new")
        temporary.write_text("".join(kept))
        temporary.replace(self._path)
        return events


def _with_client_numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {int(client): value for client, value in values.items()}
        if key in BY_CLIENT
        else values
        for key, values in content.items()
    }
