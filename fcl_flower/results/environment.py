"""The versions, the time and the machine of a run, and the memory that it took."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

import fcl_flower
from fcl_flower.results.events import Environment

_RESET = "5"
"""The text that makes Linux forget a peak, written to ``clear_refs`` (man 5 proc)."""


def current_environment() -> Environment:
    """Note versions by name, commit and machine, and the time now (UTC, ISO 8601).

    A version is None where the package's metadata is not installed, the commit where
    the program is no clone of its repository. The machine is its kind and its cores,
    not its name.
    """
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "fcl-flower": fcl_flower.__version__,
            "flwr": _version("flwr"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
        commit=commit_of(Path(fcl_flower.__file__).parents[1]),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit_of(root: Path) -> str | None:
    """Name the commit of a clone, ``-dirty`` where files differ; None without git."""
    if not (root / ".git").exists():  # git would answer for a repository above it
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or another's clone
        return None
    return done.stdout.strip()


class PeakMemory:
    """Resident memory since this object was made, as Linux knows it.

    A process may do one run after another, so that its peak of before is forgotten;
    where that is not allowed, as on other systems, nothing is known.
    """

    def __init__(self) -> None:
        """Begin to look, at the processes of now and at later ones."""
        self._known = _forget(os.getpid())
        for process in psutil.Process().children(recursive=True):
            _forget(process.pid)

    def bytes(self) -> int | None:
        """Add up the peaks of this process and of those below it that run.

        They need not have been at one time, and what processes share counts in each:
        it was no more. None if it is not known.
        """
        if not self._known:
            return None
        children = psutil.Process().children(recursive=True)
        return _peak(os.getpid()) + sum(_peak(process.pid) for process in children)


def _forget(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET)
    except OSError:  # no Linux, not allowed, or the process is gone
        return False
    return True


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith("VmHWM:"))
    return sum(int(kilobytes) * 1024 for _, kilobytes, _ in found)
