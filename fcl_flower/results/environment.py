"""The versions, the time and the machine of a run, and its peak memory."""

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
"""The text that resets the peak, written to Linux's ``clear_refs`` (man 5 proc)."""


def current_environment() -> Environment:
    """Collect versions, commit, machine, and the time now (UTC, ISO 8601).

    The commit is None if the program is no clone of its repository. The machine is
    named by kind and cores only.
    """
    return Environment(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "fcl-flower": fcl_flower.__version__,
            "flwr": installed("flwr"),
            "torch": installed("torch"),
            "python": platform.python_version(),
        },
        commit=commit_of(Path(fcl_flower.__file__).parents[1]),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    )


def installed(package: str) -> str | None:
    """Look up the version of a package; None if its metadata is not installed."""
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
    except (OSError, subprocess.CalledProcessError):  # no git, or a foreign clone
        return None
    return done.stdout.strip()


class PeakMemory:
    """The peak of resident memory since this object was made, on Linux.

    The earlier peak is reset, since a process may do one run after another. Where the
    system does not allow that, the peak is unknown.
    """

    def __init__(self) -> None:
        """Reset the peaks of this process and of the processes below it."""
        self._known = _forget(os.getpid())
        for process in psutil.Process().children(recursive=True):
            _forget(process.pid)

    def bytes(self) -> int | None:
        """Add up the peaks of this process and of the running processes below it.

        The sum is an upper bound: peaks may differ in time, and shared memory counts in
        each process. It is None if it is unknown.
        """
        if not self._known:
            return None
        children = psutil.Process().children(recursive=True)
        return _peak(os.getpid()) + sum(_peak(process.pid) for process in children)


def _forget(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET)
    except OSError:  # another system, not allowed, or the process is gone
        return False
    return True


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    peaks = (line.split() for line in lines if line.startswith("VmHWM:"))
    return sum(int(kilobytes) * 1024 for _, kilobytes, _ in peaks)
