"""The memory that a run took at most: that of its process and of those it started."""

import os
from pathlib import Path

import psutil

_RESET = "5"
"""What, written to ``clear_refs``, makes Linux forget a process's peak (man 5 proc)."""


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
        """Return the peaks of this process and of those below it that run, added up.

        They need not have been at one time, and what processes share counts in each:
        it was no more. None if it is not known.
        """
        if not self._known:
            return None
        children = psutil.Process().children(recursive=True)
        return _peak(os.getpid()) + sum(_peak(process.pid) for process in children)


def _forget(pid: int) -> bool:
    """Make the system forget the peak of a process; return whether it has."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET)
    except OSError:  # no Linux, not allowed, or the process is gone
        return False
    return True


def _peak(pid: int) -> int:
    """Return the peak of a process in bytes; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines if line.startswith("VmHWM:"))
    return sum(int(kilobytes) * 1024 for _, kilobytes, _ in found)
