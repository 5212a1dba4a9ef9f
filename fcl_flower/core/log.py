"""The log of this package, which is the standard library's logger ``fcl_flower``."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

LOGGER = logging.getLogger("fcl_flower")
log = LOGGER.log


@contextlib.contextmanager
def log_to(path: Path | None, mode: str = "a") -> Iterator[None]:
    """Write the log to ``path``, or to the console if None, within the context."""
    previous = LOGGER.handlers, LOGGER.level, LOGGER.propagate
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        handler = logging.FileHandler(path, mode=mode)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    LOGGER.handlers, LOGGER.propagate = [handler], False
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.handlers, level, LOGGER.propagate = previous
        LOGGER.setLevel(level)
        handler.close()
