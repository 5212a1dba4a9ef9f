"""What passes, and what it takes: rounds of large updates over a real network.

python experiments/large_updates/measure.py [--megabytes 75] [--clients 2] DIR

Starts a server and clients on this machine, over TLS and with keys, and runs a method
with a network of that size. Prints a table of one row in Markdown; DIR has all logs.
"""

import argparse
import contextlib
import shutil
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import LocalFederation

HERE = Path(__file__).parent
SECONDS = 0.2
PROGRAMS = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "server app",
    "flower-supernode": "SuperNode",
    "worker.py": "worker",
}

COLUMNS = (
    *("strategy", "MB", "clients", "passes", *PROGRAMS.values()),
    *("seconds a round", "MB on disk, most"),
)


def look(made: LocalFederation, clients: int, peak: Counter[str]) -> None:
    """Note the largest memory of each program so far, in MB."""
    for name in ("server", *(f"client-{n}" for n in range(clients))):
        for program, process in made.members(name):
            with contextlib.suppress(psutil.Error):
                part = PROGRAMS.get(program)
                size = process.memory_info().rss // 10**6
                if part:
                    peak[part] = max(peak[part], size)


def disk_of(state: Path) -> int:
    """Count the bytes of the SuperLink's database and of the objects beside it."""
    found = 0
    for path in (*state.glob("superlink.db*"), *state.glob("objects/*")):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            found += path.stat().st_size
    return found


def main() -> int:
    """Measure one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=75)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategy", default="fedavg")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    made = LocalFederation(given.folder, model="wide:WIDE", beside=HERE)
    peak, moments, disk = Counter[str](), list[float](), 0
    try:
        made.certificates(given.clients)
        made.server()
        for number in range(given.clients):
            made.client(number)
        for number in range(given.clients):
            made.until(f"client-{number}", "SuperNode ID")
        made.run(
            *("--strategy", given.strategy, "--dataset", "digits", "--model", "wide"),
            *("--clients", given.clients, "--tasks", 1, "--rounds", given.rounds),
            *("--classes-per-task", 2, "--set", f"model.megabytes={given.megabytes}"),
            *("--set", "training.optimizer=sgd", "--learning-rate", 0.01),
            *("--set", "federation.max_attempts=1", "--output", "results"),
        )
        while not made.ended("run"):
            look(made, given.clients, peak)
            disk = max(disk, disk_of(made.folder / "state-server"))
            if made.said("run").count("clients, loss") > len(moments):
                moments.append(time.monotonic())
            time.sleep(SECONDS)
        code = made.code("run")
    finally:
        made.end()
    print(f"| {' | '.join(COLUMNS)} |\n{'| --- ' * len(COLUMNS)}|")
    row = [given.strategy, given.megabytes, given.clients, "no" if code else "yes"]
    row += [peak[part] for part in PROGRAMS.values()]
    row += [", ".join(f"{b - a:.0f}" for a, b in pairwise(moments)), disk // 10**6]
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
