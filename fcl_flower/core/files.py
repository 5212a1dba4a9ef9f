"""Private files and folders, files replaced as a whole, and locks of folders."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fcl_flower.core.errors import config_error


def opener(path: str, flags: int) -> int:
    """Open a file for ``open(opener=...)``; only its owner can read a new file."""
    return os.open(path, flags, 0o600)


LONGEST_NAME = 255
"""The bytes of the longest name of a file."""


def check_path(path: Path, key: str) -> Path:
    """Return a path that users name, if a file or folder can have it.

    Raises:
        ConfigError: a name is no UTF-8, or too long; the message calls it ``key``.
    """
    for name in path.parts:
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise config_error(key, name, "a name in UTF-8") from error
        if size > LONGEST_NAME:
            shown = f"{name[:20]}... of {size} bytes"
            expected = f"a name of at most {LONGEST_NAME} bytes"
            raise config_error(key, shown, expected)
    return path


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can read, or close an existing folder so.

    Missing parent folders get the system's default mode.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


@contextlib.contextmanager
def replacing(
    path: Path, *, private: bool = False, durable: bool = False
) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``path`` when the context ends without an error.

    A reader sees either the old content or the new.

    Args:
        path: a file, new or old, in an existing folder.
        private: only the owner can read the file.
        durable: even a power cut leaves the old content or the new; see `sync_folder`.
    """
    temporary = path.with_name(f"{path.name}.new")
    try:
        with open(temporary, "wb", opener=opener if private else None) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def replace_file(
    path: Path,
    *content: str | bytes | memoryview,
    private: bool = False,
    durable: bool = False,
) -> None:
    """Replace a file as `replacing` does, by parts of content; text becomes UTF-8."""
    with replacing(path, private=private, durable=durable) as file:
        for part in content:
            file.write(part.encode() if isinstance(part, str) else part)


def sync_folder(folder: Path) -> None:
    """Force a folder's list of names to the disk, so that its new files stay."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOCK = ".lock"
"""The lock of a run's server, or of a command that changes the files of a run."""
COMMAND_LOCK = ".command-lock"
"""The lock of a command that starts a server, in this process or another."""
LOCK_SECONDS = 0.2
"""Seconds between two attempts at a lock that another process has."""


@contextlib.contextmanager
def lock_folder(
    folder: Path, key: str, name: str = LOCK, patience: float = 0.0
) -> Iterator[None]:
    """Lock a folder against other processes while the context lasts.

    The system takes the lock from a process that ends, whatever ends it.

    Args:
        folder: an existing folder.
        key: the setting that names the folder, for the error's message.
        name: the file that is locked.
        patience: seconds that another process may take to end.

    Raises:
        ConfigError: another process still holds the lock, or the folder has been
            renamed or removed.
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
        except FileNotFoundError as error:
            if path.exists():
                raise
            expected = (
                "a folder that keeps its name while a run or a command works in it; it "
                "was renamed or removed: give it back its name, and resume"
            )
            raise config_error(key, str(folder), expected) from error
        finally:
            path.unlink(missing_ok=True)


def take(descriptor: int) -> bool:
    """Lock an open file without waiting; return False if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Tell whether an open file is still the file at ``path``.

    The previous holder of the lock may have removed the file since it was opened.
    """
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
