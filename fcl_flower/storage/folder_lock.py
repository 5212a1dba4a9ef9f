"""One process at a time works on a folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fcl_flower.core.errors import refuse

LOCK = ".lock"
"""Held by the server of a run, or by who changes what it left."""
COMMAND_LOCK = ".command-lock"
"""Held by a command around the server that it starts, in this process or another."""


@contextlib.contextmanager
def locked(folder: Path, key: str, name: str = LOCK) -> Iterator[None]:
    """Keep others out of a folder for as long as the context lasts.

    The system takes the lock from a process that ends, whatever ends it.

    Args:
        folder: exists and can be written.
        key: the setting that names it, for the message of an error.
        name: of the file in it that is locked, and removed in the end.

    Raises:
        ConfigError: another process works on the folder, or this one does already.
    """
    path = folder / name
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("a"))
            if not take(file.fileno()):
                expected = "a folder on which no other run or command works now"
                raise refuse(key, str(folder), expected)
            if _is_at(path, file):
                break
        try:
            yield
        finally:
            path.unlink()


def take(descriptor: int) -> bool:
    """Lock an open file without waiting; return whether nobody else had it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether an open file is still the one at a path.

    Who had the lock before may have removed it between our opening and locking it.
    """
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
