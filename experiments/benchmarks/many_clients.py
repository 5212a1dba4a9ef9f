"""(c) Clients by the thousand: seconds a visit, memory of all processes, files on disk.

The small network on digits, ten training images a client, all of whom take part in
each round and keep a state. A run is measured with one round and with more, as in (a);
memory and disk are those of the longer one. States are kept in memory, as is the
default of a run in this process, or in a folder (`run.client_state`).
"""

import itertools
import math
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import users
from client_visits import work_of_ours
from measurement import environment, fcl, measured, options
from results import Results, Row, spread, table

from fcl_flower.config.parsing import Scalar

IMAGES = 10
STORES = ("memory", "folder")


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        clients: how many, one run after the other.
        visits: by which the longer run exceeds the shorter, at least.
        strategies: of the runs.
    """

    clients: tuple[int, ...] = (10, 100, 1000, 10_000)
    visits: int = 1000
    strategies: tuple[str, ...] = ("fedavg", "fedweit")

    def rounds(self, clients: int) -> tuple[int, int]:
        """Return the rounds of the short and of the long run."""
        return 1, 1 + math.ceil(self.visits / clients)


FULL, QUICK = Size(), Size((10, 100), 200)


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Measure every number of clients in turn, several times."""
    for repeat in range(repeats):
        for clients, strategy, store in _cases(size):
            for rounds in size.rounds(clients):
                results.once(
                    {
                        **_key(clients, strategy, store),
                        "repeat": repeat,
                        "rounds": rounds,
                    },
                    partial(_one, clients, strategy, store, rounds),
                )


def _cases(size: Size) -> list[tuple[int, str, str]]:
    return list(itertools.product(size.clients, size.strategies, STORES))


def _key(clients: int, strategy: str, store: str) -> Row:
    return {"part": "c", "clients": clients, "strategy": strategy, "states": store}


def _one(clients: int, strategy: str, store: str, rounds: int) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        users.write_users(folder / "data", clients, IMAGES, digits=True)
        states = str(folder / "states") if store == "folder" else "context"
        settings: dict[str, Scalar] = {
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
            "privacy.scores": False,
            "run.client_state": states,
            "run.seed": 1,
        }
        command = fcl(
            *("simulate", "--backend", "in-process", "--data-root", folder / "data"),
            *(*options(settings), "--output", folder / "output"),
        )
        log = folder / "log"
        cost = measured(command, environment(folder / "installed"), log)
        work = work_of_ours(folder / "output")
        if work["samples"] != clients * rounds * IMAGES or math.isnan(work["loss"]):
            raise RuntimeError(f"got {work} of {clients} clients in {rounds} rounds")
        shutil.rmtree(folder / "data")
        shutil.rmtree(folder / "installed")
        files = [file for file in folder.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        return {**work, **asdict(cost), "files": len(files), "bytes": size}


def report(results: Results, size: Size) -> str:
    """Return the table, a line for each number of clients, strategy and store."""
    lines = []
    for clients, strategy, store in _cases(size):
        few, many = (
            results.of(**_key(clients, strategy, store), rounds=rounds)
            for rounds in size.rounds(clients)
        )
        cpu, wall = (
            [
                (long[of] - short[of]) / (long["visits"] - short["visits"])
                for short, long in zip(few, many, strict=True)
            ]
            for of in ("cpu", "wall")
        )
        last = many[-1]
        lines.append(
            [
                *(f"{clients:,}", strategy, store),
                *(spread([1000 * second for second in spent]) for spent in (cpu, wall)),
                f"{max(row['memory'] for row in many) / 1e9:.2f} GB",
                f"{last['bytes'] / 1e6:.1f} MB",
                f"{last['files']:,}",
            ]
        )
    head = (
        *("clients", "strategy", "states in", "processor ms a visit"),
        *("wall ms a visit", "memory of all processes", "on disk", "files"),
    )
    return table(head, lines)
