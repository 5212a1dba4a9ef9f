"""Files and folders that only the user who runs the program can read."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fcl_flower.core.errors import config_error


def opener(path: str, flags: int) -> int:
    """Open a file, which is its owner's alone if it is new: ``open(opener=...)``."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path) -> None:
    """Make a folder, or turn one, so that only its owner can look into it.

    The folders above it are as the system makes them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextlib.contextmanager
def replacing(
    path: Path, *, private: bool = False, durable: bool = False
) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of another when the context ends well.

    A reader sees the old content or the new.

    Args:
        path: in a folder that is there.
        private: the file is its owner's alone.
        durable: a power cut, too, leaves the one or the other; see `sync_folder`.
    """
    temporary = path.with_name(f"{path.name}.new")
    with open(temporary, "wb", opener=opener if private else None) as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def replace_file(
    path: Path,
    *content: str | bytes | memoryview,
    private: bool = False,
    durable: bool = False,
) -> None:
    """Replace a file by its content in parts, as `replacing`; text becomes UTF-8."""
    with replacing(path, private=private, durable=durable) as file:
        for part in content:
            file.write(part.encode() if isinstance(part, str) else part)


def sync_folder(folder: Path) -> None:
    """Force to the disk which names a folder has: those of new files, above all."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOCK = ".lock"
"""Held by the server of a run, or by who changes what it left."""
COMMAND_LOCK = ".command-lock"
"""Held by a command around the server that it starts, in this process or another."""
LOCK_SECONDS = 0.2
"""Between two attempts at a lock that another process has."""


@contextlib.contextmanager
def lock_folder(
    folder: Path, key: str, name: str = LOCK, patience: float = 0.0
) -> Iterator[None]:
    """Keep other processes out of a folder for as long as the context lasts.

    The system takes the lock from a process that ends, whatever ends it.

    Args:
        folder: where the lock is.
        key: the setting that names the folder, for the message of an error.
        name: of the lock.
        patience: seconds that another process may take to end.

    Raises:
        ConfigError: another process still has the lock.
    """
    path, deadline = folder / name, time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("a"))
            if not take(file.fileno()):
                if time.monotonic() >= deadline:
                    expected = "a folder on which no other run or command works now"
                    raise config_error(key, str(folder), expected)
                time.sleep(LOCK_SECONDS)
            elif _is_at(path, file):
                break
            file.close()
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
    """Tell whether an open file is still the one at a path.

    The process that had the lock before may have removed it since we opened it.
    """
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
