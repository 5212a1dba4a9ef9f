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
from fcl_flower.results.events import Begun, Event, Trained, from_entry, to_entry

FILE = "journal.jsonl"
FORMAT: Final = 2
"""The first line has this number."""


class Journal:
    """A file that only its owner can read.

    Each line is JSON whose first entry is the CRC-32 of all that follows it. The first
    line is the beginning of the run.
    """

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path

    def clear(self) -> None:
        """Forget all events."""
        self._path.unlink(missing_ok=True)

    def begin(self, event: Begun) -> None:
        """Begin with an event."""
        self._replace(_line(event))

    def add(self, event: Event) -> None:
        """Append an event and wait until it is on the disk."""
        with open(self._path, "ab", opener=opener) as file:
            file.write(_line(event))
            file.flush()
            os.fsync(file.fileno())

    def resume(self, last: int) -> list[Event]:
        """Give the events up to the end of round ``last``; remove the later ones.

        The first is the beginning. What was recorded after the round, before the next
        one, was recorded after the checkpoint, too, and happens again.

        Raises:
            FormatError: the file is of another format.
            WireError: the file is damaged or ends earlier.
        """
        events, kept, rounds = list[Event](), list[bytes](), 0
        try:
            *lines, unfinished = self._path.read_bytes().split(b"\n")
            # A process that ended while it wrote left no whole line: here the end of
            # the line is what is wrong.
            if _is_whole(unfinished[:-1]):
                raise ValueError(f"line {len(lines) + 1} without its end")
            for number, line in enumerate(lines, start=1):
                event = _event(self._path, number, line)
                if events and rounds == last:
                    break
                events.append(event)
                rounds += isinstance(event, Trained)
                kept.append(line + b"\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: got {error!r}, expected the events of a run"
            ) from error
        if rounds != last:
            raise WireError(
                f"{self._path}: got {rounds} rounds, expected {last}, as many as the "
                "checkpoint has"
            )
        self._replace(b"".join(kept))
        return events

    def _replace(self, content: bytes) -> None:
        replace_file(self._path, content, private=True, durable=True)


def is_journal(path: Path) -> bool:
    """Tell whether a file begins as a journal does, of this format or another."""
    try:
        with path.open("rb") as file:
            return _is_whole(file.readline()[:-1])
    except OSError:
        return False


def replay(path: Path) -> Iterator[Event]:
    """Yield the events so far of a journal that somebody may be writing to.

    A whole line that is no event is a `ValueError`. A file of another format is a
    `FormatError`.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _event(path, number, line)


def _event(path: Path, number: int, line: bytes) -> Event:
    if not _is_whole(line):
        raise ValueError(f"line {number} with a wrong checksum")
    found: dict[str, Any] = json.loads(line)
    if number == 1:
        check_format(path, found.get(KEY), FORMAT)
    return from_entry(found["what"], found["round"], found["told"])


def _line(event: Event) -> bytes:
    name, number, content = to_entry(event)
    found = {"what": name, "round": number, "told": content}
    if isinstance(event, Begun):
        found[KEY] = FORMAT
    return _with_checksum(json.dumps(found).encode()[1:]) + b"\n"


def _with_checksum(rest: bytes) -> bytes:
    """Begin a line whose entries but the first are ``rest``, without its brace."""
    return b'{"crc": "%08x", %s' % (zlib.crc32(rest), rest)


_START = len(_with_checksum(b""))


def _is_whole(line: bytes) -> bool:
    return line == _with_checksum(line[_START:])
