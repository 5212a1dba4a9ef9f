"""Whom Flower takes this process for, and where it writes what it logs here."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from flwr.common.logger import FLOWER_LOGGER
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1


@contextlib.contextmanager
def flower_identity() -> Iterator[None]:
    """Give this process an identity, without which Flower builds no message."""
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name in names:
        setattr(TaskIdentity, name, RUN_ID)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


@contextlib.contextmanager
def log_to(path: Path | None, mode: str) -> Iterator[None]:
    """Write Flower's log to a file instead of the console.

    Args:
        path: of the file; None leaves the log where it is.
        mode: "w" for a new file, "a" to go on with one.
    """
    if path is None:
        yield
        return
    before = list(FLOWER_LOGGER.handlers)
    file = logging.FileHandler(path, mode=mode)
    file.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    FLOWER_LOGGER.handlers[:] = [file]
    try:
        yield
    finally:
        FLOWER_LOGGER.handlers[:] = before
        file.close()
