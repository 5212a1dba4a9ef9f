"""What a command costs: processor time, wall time and memory of all its processes."""

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fcl_flower.config.parsing import Scalar, toml

ROOT = Path(__file__).parents[2]
SIDES = Path(__file__).parent / "sides"
REAL_ROUNDS = ROOT / "experiments" / "round_overhead"
SAMPLED = 0.1
"""Seconds between two looks at the processes."""
MEMORY_SAMPLED = 5
"""From how many looks one is at their memory too, which costs more."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command.

    Attributes:
        cpu: seconds of processor time of all its processes, user and system.
        wall: seconds from start to end.
        memory: most bytes that all its processes had together at a look; a page that
            several share is counted once (proportional set size).
        load: the machine's load average when it started.
    """

    cpu: float
    wall: float
    memory: int
    load: float


def fcl(*arguments: object) -> list[str]:
    """Return a command of ours, run by this Python from this source."""
    return [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)]


def options(settings: Mapping[str, Scalar]) -> list[str]:
    """Return settings as arguments of `fcl`."""
    return [part for k, v in settings.items() for part in ("--set", f"{k}={toml(v)}")]


def environment(installed: Path) -> dict[str, str]:
    """Return an environment in which this source finds what the benchmarks add.

    One thread for each process: with more, small batches wait for each other.

    Args:
        installed: a folder, in which the declaration of a package is written.
    """
    package = installed / "benchmarks-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Name: benchmarks\nVersion: 1\n")
    (package / "entry_points.txt").write_text(
        "[fcl_flower.models]\nsimple-cnn = registered:SIMPLE_CNN\n"
        "[fcl_flower.algorithms]\ntimed = timed:TIMED\n"
    )
    places = (ROOT, SIDES, REAL_ROUNDS, installed.absolute())
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def measured(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    watch: Callable[[], None] = lambda: None,
) -> Cost:
    """Run a command to its end; return its cost.

    Args:
        command: with its arguments.
        env: its environment.
        log: gets both its streams.
        watch: called again and again while it runs.

    Raises:
        RuntimeError: it failed; the message names the log.
    """
    load, began, before = os.getloadavg()[0], time.perf_counter(), _waited_for()
    seen = _Processes()
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
        try:
            looks = 0
            while process.poll() is None:
                seen.look(memory=looks % MEMORY_SAMPLED == 0)
                watch()
                looks += 1
                time.sleep(SAMPLED)
        finally:
            process.kill()  # nothing if it has ended
            process.wait()
    if process.returncode:
        raise RuntimeError(f"code {process.returncode}, see {log}: {command}")
    # Each misses something: the system what nobody has waited for, as of daemons, and
    # the looks the last moments of each process.
    cpu = max(_waited_for() - before, sum(seen.cpu.values()))
    return Cost(cpu, time.perf_counter() - began, seen.memory, load)


class _Processes:
    """What this process starts from now on, even where that leaves its parent.

    Attributes:
        cpu: seconds of processor time when last seen, by process.
        memory: most bytes of all together.
    """

    def __init__(self) -> None:
        self.cpu: dict[psutil.Process, float] = {}
        self.memory = 0
        self._seen = set(psutil.pids())

    def look(self, *, memory: bool) -> None:
        """Find new processes, and see what each of ours has used."""
        there = set(psutil.pids())
        ours = {os.getpid(), *(process.pid for process in self.cpu)}
        for pid in sorted(there - self._seen):  # parents before children
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.ppid() in ours:
                    ours.add(pid)
                    self.cpu[process] = 0.0
        self._seen = there
        held = 0
        for process in self.cpu:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                self.cpu[process] = times.user + times.system
                held += process.memory_full_info().pss if memory else 0
        self.memory = max(self.memory, held)


def _waited_for() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
