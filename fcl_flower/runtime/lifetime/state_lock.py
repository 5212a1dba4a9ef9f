"""One program at a time works in a folder of states; who is in the way is named."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from fcl_flower.core.errors import refuse
from fcl_flower.runtime.lifetime.guardian import GRACE
from fcl_flower.storage.folder_lock import take
from fcl_flower.storage.private import opener

LOCK = "in-use.lock"
POLL_SECONDS = 0.2
PATIENCE = GRACE + 5.0
"""What an earlier program may take to end, after the process that wanted it."""


@contextmanager
def locked(folder: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Keep a folder of states for this process, and for those that get the descriptor.

    The system gives the folder back when the last of them has ended, however it did.

    Args:
        folder: exists.
        report: called with a line when another program is there and may be ending.

    Yields:
        the descriptor; a program that holds it keeps the folder, too.

    Raises:
        ConfigError: another program stays there; the message names it.
    """
    path = folder / LOCK
    lock = opener(str(path), os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + PATIENCE
        told = False
        while not take(lock):
            if time.monotonic() > deadline:
                raise refuse(
                    "state",
                    str(folder),
                    f"a folder that no other program works in: {_holder(path)} does; "
                    "end it, or name another folder",
                )
            if not told:
                report(f"waiting for {_holder(path)} in {folder} to end")
                told = True
            time.sleep(POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


def _holder(path: Path) -> str:
    """Return the process that has a file open, the first where there are several."""
    for process in sorted(psutil.process_iter(), key=lambda found: found.pid):
        try:
            opened = {Path(file.path) for file in process.open_files()}
            if process.pid != os.getpid() and path.resolve() in opened:
                return f"process {process.pid} ({_title(process)})"
        except psutil.Error:  # it has ended, or is another user's
            continue
    return "a process of another user"


def _title(process: psutil.Process) -> str:
    """Return what was started, without the interpreter and its options."""
    words = [Path(word).name for word in process.cmdline()[:4]]
    ours = (word for word in words if word.startswith(("fcl", "flower", "flwr")))
    return next(ours, process.name())
