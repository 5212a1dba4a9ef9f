"""The log of a server or a client: lines with a time, on screen and in a file."""

import datetime
import logging
import re
import sys
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from typing_extensions import override

from fcl_flower.core.errors import config_error

FILE_BYTES, FILES = 10_000_000, 5
"""The size at which a log file is put aside, and how many older ones are kept."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def now() -> datetime.datetime:
    """Tell the time in UTC."""
    return datetime.datetime.now(datetime.UTC)


def as_local(time: datetime.datetime) -> str:
    """Write a time in this machine's time zone, with its distance from UTC."""
    return time.astimezone().isoformat(timespec="seconds")


def without_colours(line: str) -> str:
    """Remove a terminal's colour codes from a line."""
    return _COLOURS.sub("", line)


def on_screen(line: str) -> None:
    """Write a line as it is, at once."""
    print(line, flush=True)


class Log:
    """Writes lines of this program and of Flower's programs, each with its time."""

    def __init__(self, file: Path | None = None) -> None:
        """Write to the screen, and to a file whose size is bounded.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._file: RotatingFileHandler | None = None
        if file is None:
            return
        try:
            self._file = _File(file, maxBytes=FILE_BYTES, backupCount=FILES)
        except OSError as error:
            expected = f"a file that can be written ({error.strerror})"
            raise config_error("log-file", str(file), expected) from error

    def say(self, sentence: str) -> None:
        """Write a line for the user."""
        self.pass_on(f"fcl: {sentence}")

    def say_how_to_go_on(self, kept: str) -> None:
        """Say how to go on after an interrupt; ``kept`` is the option of the folder."""
        self.say(f"interrupted; the same command goes on from what is in {kept}")

    def pass_on(self, line: str, screen: TextIO | None = None) -> None:
        """Write a line of a program, with colours in a terminal alone."""
        screen = screen or sys.stdout
        text = f"{as_local(now())} {line}"
        plain = without_colours(text)
        print(text if screen.isatty() else plain, file=screen, flush=True)
        if self._file is not None:
            record = logging.LogRecord("fcl", logging.INFO, "", 0, plain, None, None)
            self._file.handle(record)


class _File(RotatingFileHandler):
    """A file whose disk may be full, which the screen says once."""

    failed = False

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        if not self.failed:
            error = sys.exc_info()[1]
            print(f"fcl: the log file cannot be written: {error}", flush=True)
        self.failed = True


class Tail:
    """The last lines of a program, for the sentence that says how it ended."""

    def __init__(self, lines: int = 5) -> None:
        """Keep so many lines."""
        self._lines = deque[str](maxlen=lines)

    def add(self, line: str) -> None:
        """Note a line, without colours and blanks around it."""
        if text := without_colours(line).strip():
            self._lines.append(text)

    @override
    def __str__(self) -> str:
        """Join the last lines for a sentence."""
        return " | ".join(self._lines) or "it has said nothing"
