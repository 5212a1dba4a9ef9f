"""(c) Clients by the thousand: seconds a visit, memory of all processes, files on disk.

The small network on digits, ten training images a client, all of whom keep a state and
are tested in the end; at most 500 take part in a round. A run is measured with one
round and with more, as in (a); memory and disk are the most of the longer one, as the
clients' states are removed at the end of a run.
"""

import contextlib
import itertools
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import users
from client_visits import work_of_ours
from measurement import environment, fcl, measured, options
from results import Results, Row, of_a_further, spread, table

from fcl_flower.config.parsing import Scalar

IMAGES = 10


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        clients: how many, one run after the other.
        cohort: how many of them a round has at most.
        visits: by which the longer run exceeds the shorter, at least.
        strategies: of the runs.
    """

    clients: tuple[int, ...] = (10, 100, 1000, 10_000)
    cohort: int = 500
    visits: int = 1000
    strategies: tuple[str, ...] = ("fedavg", "fedweit")

    def rounds(self, clients: int) -> tuple[int, int]:
        """Return the rounds of the short and of the long run."""
        return 1, 1 + math.ceil(self.visits / min(clients, self.cohort))


FULL, QUICK = Size(), Size((10, 100), 50, 200)


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Measure every number of clients in turn, several times."""
    for repeat in range(repeats):
        for clients, strategy in _cases(size):
            for rounds in size.rounds(clients):
                cohort = min(clients, size.cohort)
                results.once(
                    {
                        **_key(clients, strategy),
                        "repeat": repeat,
                        "rounds": rounds,
                    },
                    partial(run_of, clients, cohort, strategy, rounds, {}),
                )


def _cases(size: Size) -> list[tuple[int, str]]:
    return list(itertools.product(size.clients, size.strategies))


def _key(clients: int, strategy: str) -> Row:
    return {"part": "c", "clients": clients, "strategy": strategy}


def run_of(
    clients: int,
    cohort: int,
    strategy: str,
    rounds: int,
    more: Mapping[str, Scalar],
) -> Row:
    """Return the cost of a run on digits, and what it has done.

    Args:
        clients: that there are.
        cohort: how many of them a round has.
        strategy: of the run.
        rounds: of its one task.
        more: settings beside those that all have.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data", clients)
        settings = {**settings_of(clients, cohort, strategy, rounds), **more}
        command = fcl(
            *("simulate", "--backend", "in-process", "--data-root", folder / "data"),
            *(*options(settings), "--output", folder / "output"),
        )
        disk = Disk(folder / "output")
        env = environment(folder / "installed")
        cost = measured(command, env, folder / "log", disk.look)
        work = work_of_ours(folder / "output")
        summary = json.loads((folder / "output" / "summary.json").read_text())
        sizes = {"up": summary["bytes_up"], "down": summary["bytes_down"]}
        if work["samples"] != cohort * rounds * IMAGES or math.isnan(work["loss"]):
            raise RuntimeError(f"got {work} of {clients} clients in {rounds} rounds")
        kept = {"files": disk.files, "bytes": disk.bytes}
        return {**work, **asdict(cost), **sizes, **kept}


def write_data(folder: Path, clients: int) -> None:
    """Write the digits of so many clients; of each class, one validates."""
    users.write_users(folder, clients, IMAGES + users.CLASSES, digits=True)


def settings_of(
    clients: int, cohort: int, strategy: str, rounds: int
) -> dict[str, Scalar]:
    """Return the settings of a run; the arguments are those of `run_of`."""
    return {
        "strategy.name": strategy,
        "scenario.name": "classes",
        "scenario.clients": clients,
        "scenario.tasks": 1,
        "scenario.classes_per_task": users.CLASSES,
        "scenario.valid_fraction": users.CLASSES / (IMAGES + users.CLASSES),
        "data.datasets": users.NAME,
        "model.name": "small",
        "training.batch_size": IMAGES,
        "federation.rounds_per_task": rounds,
        "federation.client_fraction": cohort / clients,
        "privacy.scores": False,
        "run.seed": 1,
    }


class Disk:
    """Watches how much a folder holds at most.

    Attributes:
        files: the most that were there.
        bytes: of all together, at most.
    """

    def __init__(self, folder: Path) -> None:
        """See nothing yet; the folder need not be there."""
        self.files = self.bytes = 0
        self._folder, self._next = folder, 0.0

    def look(self) -> None:
        """Count, unless that would take a tenth of the time or more."""
        began = time.perf_counter()
        if began < self._next:
            return
        files = size = 0
        for place, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # it was replaced
                    size += Path(place, name).stat().st_size
                    files += 1
        self.files, self.bytes = max(self.files, files), max(self.bytes, size)
        now = time.perf_counter()
        self._next = now + 10 * (now - began)


def report(results: Results, size: Size) -> str:
    """Return the table, a line for each number of clients and strategy."""
    lines = []
    for clients, strategy in _cases(size):
        few, many = (
            results.of(**_key(clients, strategy), rounds=rounds)
            for rounds in size.rounds(clients)
        )
        cpu, wall = (of_a_further("visits", of, few, many) for of in ("cpu", "wall"))
        lines.append(
            [
                *(f"{clients:,}", strategy),
                *(spread([1000 * second for second in spent]) for spent in (cpu, wall)),
                f"{max(row['memory'] for row in many) / 1e9:.2f} GB",
                f"{max(row['bytes'] for row in many) / 1e6:.1f} MB",
                f"{max(row['files'] for row in many):,}",
            ]
        )
    head = (
        *("clients", "strategy", "processor ms a visit", "wall ms a visit"),
        *("memory of all processes", "on disk", "files"),
    )
    return table(head, lines)
