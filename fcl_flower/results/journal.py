"""The journal of a run: one event a line, on the disk before the run goes on."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from fcl_flower.core.errors import WireError
from fcl_flower.core.files import opener, replace_file
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.results.events import (
    Begun,
    Evaluated,
    EvaluatedBefore,
    Event,
    Extended,
    Finished,
    Trained,
)

FILE = "journal.jsonl"
FORMAT: Final = 2
"""The first line has this number."""

EVENTS: dict[str, type[Event]] = {
    "begun": Begun,
    "extended": Extended,
    "trained": Trained,
    "evaluated": Evaluated,
    "evaluated before aggregation": EvaluatedBefore,
    "finished": Finished,
}
"""The types of events by their names in the file."""


class Journal:
    """A file that only its owner can read.

    Each line is JSON. Its first entry is the CRC-32 of the rest of the line. The first
    line is the beginning of the run.
    """

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path

    def begin(self, event: Begun) -> None:
        """Write a new file with the run's beginning."""
        replace_file(self._path, _line(event), private=True, durable=True)

    def add(self, event: Event) -> None:
        """Append an event and wait until it is on the disk."""
        with open(self._path, "ab", opener=opener) as file:
            file.write(_line(event))
            file.flush()
            os.fsync(file.fileno())

    def resume(self, last: int) -> list[Event]:
        """Return the events up to the end of round ``last``; remove the later ones.

        The first event is the beginning. Events between that round and the next one
        came after the checkpoint, so the resumed run repeats them.

        Raises:
            FormatError: the file is of another format.
            WireError: the file is damaged or ends earlier.
        """
        events, rounds = list[Event](), 0
        try:
            lines = self._path.read_bytes().split(b"\n")
            # A process that ended while it wrote left a part of a line. A whole line
            # without a line break was damaged.
            if _is_whole(lines[-1][:-1]):
                raise ValueError(f"line {len(lines)} without its end")
            for event in replay(self._path):
                if events and rounds == last:
                    break
                events.append(event)
                rounds += isinstance(event, Trained)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: got {error!r}, expected the events of a run"
            ) from error
        if rounds != last:
            raise WireError(
                f"{self._path}: got {rounds} rounds, expected {last}, as many as the "
                "checkpoint has"
            )
        kept = b"".join(line + b"\n" for line in lines[: len(events)])
        replace_file(self._path, kept, private=True, durable=True)
        return events


def is_journal(path: Path) -> bool:
    """Tell whether a file begins as a journal does, of this format or another."""
    try:
        with path.open("rb") as file:
            return _is_whole(file.readline()[:-1])
    except OSError:
        return False


def replay(path: Path) -> Iterator[Event]:
    """Yield the events so far of a journal to which a process may still write.

    Raises:
        FormatError: the file is of another format.
        ValueError: a whole line is no event.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise ValueError(f"line {number} with a wrong checksum")
        entry: dict[str, Any] = json.loads(line)
        if number == 1:
            check_format(path, entry.get(KEY), FORMAT)
        content = {"round": entry["round"], **entry["told"]}
        yield EVENTS[entry["what"]].model_validate(content)


def _line(event: Event) -> bytes:
    content = event.model_dump(exclude_unset=isinstance(event, Finished))
    name = next(name for name, kind in EVENTS.items() if type(event) is kind)
    entry = {"what": name, "round": content.pop("round", 0), "told": content}
    if isinstance(event, Begun):
        entry[KEY] = FORMAT
    return _with_checksum(json.dumps(entry).encode()[1:]) + b"\n"


def _with_checksum(rest: bytes) -> bytes:
    """Begin a line with the checksum of the rest, which lacks the opening brace."""
    return b'{"crc": "%08x", %s' % (zlib.crc32(rest), rest)


_START = len(_with_checksum(b""))


def _is_whole(line: bytes) -> bool:
    return line == _with_checksum(line[_START:])
