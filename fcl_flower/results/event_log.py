"""The events of a run, one a line: what its record is restored from."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from fcl_flower.core.errors import WireError
from fcl_flower.core.files import opener

ROUND: Final = "trained"
EVALUATION: Final = "evaluated"
BEFORE_AGGREGATION: Final = "evaluated before aggregation"

BY_CLIENT = {"scores", "replies", "failed", "stages", "late"}
"""Parts of an event that are by client, whose number JSON keeps as text."""

_WITHOUT_CHECKSUM = b'{"what": '
"""How each line began in earlier versions; no bit that flips makes it of today's."""


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
    """A file with one event a line, each on the disk before the run goes on.

    Each line is JSON whose first entry is the CRC-32 of all that follows it. Only the
    owner of the file can read it.
    """

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path

    def clear(self) -> None:
        """Remove all events."""
        self._replace(b"")

    def add(self, name: str, server_round: int, content: Mapping[str, Any]) -> None:
        """Append an event and wait until it is on the disk."""
        event = {"what": name, "round": server_round, "told": content}
        line = _with_checksum(json.dumps(event).encode()[1:]) + b"\n"
        _write(self._path, "ab", line)

    def until(self, last: int) -> list[Event]:
        """Return the events up to the end of round ``last``; remove the later ones.

        What was recorded after the round, before the next one, was recorded after the
        checkpoint, too, and happens again. Lines of earlier versions, without a
        checksum, get one.

        Raises:
            WireError: the file is damaged or ends earlier.
        """
        events, kept, rounds = list[Event](), b"", 0
        try:
            *lines, unfinished = self._path.read_bytes().split(b"\n")
            if lines and lines[0].startswith(_WITHOUT_CHECKSUM):
                lines = [_with_checksum(line[1:]) for line in lines]
            # A process that ended while it wrote left no whole line: here the end of
            # the line is what is wrong.
            elif _is_whole(unfinished[:-1]):
                raise ValueError(f"line {len(lines) + 1} without its end")
            for number, line in enumerate(lines, start=1):
                if not _is_whole(line):
                    raise ValueError(f"line {number} with a wrong checksum")
                found = json.loads(line)
                if rounds == last:
                    break
                content = _with_client_numbers(found["told"])
                events.append(Event(found["what"], found["round"], content))
                rounds += found["what"] == ROUND
                kept += line + b"\n"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: got {error!r}, expected the events of a run"
            ) from error
        if rounds != last:
            raise WireError(
                f"{self._path}: got {rounds} rounds, expected {last}, as many as the "
                "checkpoint has"
            )
        self._replace(kept)
        return events

    def _replace(self, content: bytes) -> None:
        temporary = self._path.with_suffix(".new")
        _write(temporary, "wb", content)
        temporary.replace(self._path)


def _write(path: Path, mode: Literal["ab", "wb"], content: bytes) -> None:
    """Write to a file and wait until it is on the disk."""
    with open(path, mode, opener=opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _with_checksum(rest: bytes) -> bytes:
    """Return a line whose entries but the first are ``rest``, without its brace."""
    return b'{"crc": "%08x", %s' % (zlib.crc32(rest), rest)


def _is_whole(line: bytes) -> bool:
    """Return whether a line is as it was written."""
    return line == _with_checksum(line[len(_with_checksum(b"")) :])


def _with_client_numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {int(client): value for client, value in values.items()}
        if key in BY_CLIENT
        else values
        for key, values in content.items()
    }
