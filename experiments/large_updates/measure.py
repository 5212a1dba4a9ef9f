"""What passes, and what it takes: rounds of large updates over a real network.

python experiments/large_updates/measure.py [--megabytes 75] [--clients 2] DIR

Starts a server and clients on this machine, over TLS and with keys, and runs a method
with a network of that size. Prints a row of a table in Markdown; DIR has all logs.
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

sys.path.append(str(Path(__file__).parents[1]))
from local_federation import LocalFederation

HERE = Path(__file__).parent
SECONDS = 0.2
PROGRAMS = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "server app",
    "flower-supernode": "SuperNode",
    "worker.py": "worker",
}


def federation(folder: Path) -> LocalFederation:
    """Prepare a federation whose programs know the network."""
    shutil.rmtree(folder, ignore_errors=True)
    made = LocalFederation(folder, beside=HERE)
    about = made.folder / "installed" / "wide-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: wide\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[fcl_flower.models]\nwide = wide:WIDE\n")
    made.environment["PYTHONPATH"] += f":{about.parent}"
    return made


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
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    made, peak, disk = federation(given.folder), Counter[str](), list[str]()
    moments, most = list[float](), 0
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
            *(
                "--set",
                "training.optimizer=sgd",
                "--learning-rate",
                0.01,
                "--output",
                "results",
            ),
            *("--set", "federation.max_attempts=1"),
            *(word for one in given.set for word in ("--set", one)),
        )
        state = made.folder / "state-server"
        while not made.ended("run"):
            look(made, given.clients, peak)
            size = disk_of(state)
            most = max(most, size)
            done = made.said("run").count("clients, loss")
            if done > len(disk):
                disk.append(f"{size / 1e6:.0f}")
                moments.append(time.monotonic())
            time.sleep(SECONDS)
        passed = made.code("run") == 0
        locked = "database is locked" in made.log("server")
        rounds = [f"{b - a:.0f}" for a, b in pairwise(moments)]
        parts = [f"{peak[part]:.0f}" for part in dict.fromkeys(PROGRAMS.values())]
        row = given.strategy, given.megabytes, given.clients, ("no", "yes")[passed]
        ends = ", ".join(rounds), ", ".join(disk), f"{most / 1e6:.0f}", locked
        print("|", " | ".join(map(str, (*row, *parts, *ends))), "|", flush=True)
        return 0 if passed else 1
    finally:
        made.end()


if __name__ == "__main__":
    sys.exit(main())
