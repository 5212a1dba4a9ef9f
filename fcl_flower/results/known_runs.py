"""The runs that a server has begun, and how each ended, as files beside its state.

A run's process holds a lock on its file. So a run that was killed is known to have
stopped, though no process could write that.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote, unquote

from fcl_flower.core.files import make_private_folder, opener, take

FOLDER = "runs"
"""The folder within that of a server's state."""


class Standing(StrEnum):
    """The standing of a run."""

    GOES_ON = "goes on"
    FINISHED = "finished"
    FAILED = "failed"
    """It ended by an error."""
    STOPPED = "stopped"
    """A person ended it, or its machine did."""


class KnownRun(NamedTuple):
    """A run that a server has begun."""

    name: str
    folder: Path
    began: float
    """The seconds since 1970 at which it began, or was resumed."""
    standing: Standing
    process: int = 0
    """The number of its process; 0 where that has ended it itself."""


@contextlib.contextmanager
def noted(runs: Path, name: str, folder: Path) -> Iterator[None]:
    """Note in ``runs`` that a run goes on while the context lasts, and how it ends."""
    make_private_folder(runs)
    path = runs / f"{quote(name, safe='')}.json"  # anybody may name a run a/b
    with open(path, "a", opener=opener) as file:
        # A reader may hold the lock for a moment. Two runs never have one name.
        fcntl.flock(file, fcntl.LOCK_EX)
        begun = {"folder": str(folder), "began": time.time(), "process": os.getpid()}
        _write(file, begun)
        ended = Standing.FINISHED
        try:
            yield
        except Exception:
            ended = Standing.FAILED
            raise
        except BaseException:
            ended = Standing.STOPPED
            raise
        finally:
            _write(file, {**begun, "ended": ended})


def _write(file: IO[str], content: dict[str, object]) -> None:
    file.truncate(0)
    file.write(json.dumps(content))
    file.flush()


def known_runs(runs: Path) -> list[KnownRun]:
    """List the runs in a folder by the time at which they began."""
    known = (_read(path) for path in runs.glob("*.json"))
    return sorted(filter(None, known), key=lambda run: run.began)


def _read(path: Path) -> KnownRun | None:
    """Read one run; None while its first line is not whole, or where it is damaged."""
    try:
        with path.open("r+") as file:  # over NFS a lock needs a writable file
            content = json.load(file)
            standing = Standing(content.get("ended", Standing.STOPPED))
            if "ended" not in content and not take(file.fileno()):
                standing = Standing.GOES_ON
            return KnownRun(
                unquote(path.stem),
                Path(content["folder"]),
                content["began"],
                standing,
                0 if "ended" in content else content["process"],
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
