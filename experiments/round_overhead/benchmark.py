"""What a round of ours costs beside a round of Flower's own FedAvg.

python experiments/round_overhead/benchmark.py [--pairs 2] [--rounds 12] DIR

Starts a server and two clients on this machine, over TLS and with keys, and runs FedAvg
in turn by our loop, with clients whose worker stays and with clients that start a
process for each message, and by Flower's strategy: the same model, data and training.
Prints two tables in Markdown; DIR/rounds.jsonl has every round.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fcl_flower.config.parsing import toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.runtime.flower_project import (
    SUPERLINK,
    environment,
    write_app,
    write_superlink,
)
from fcl_flower.runtime.processes import free_port, program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE = 900.0
WORK = RunConfig.from_settings(
    strategy="timed",
    clients=2,
    tasks=1,
    classes_per_task=2,
    head="single",
    min_updates=2,
    seed=1,
)
PARTS = {
    "until the client trains: its wait, imports, data, model": ("asked", "began"),
    "training": ("began", "ended"),
    "until the server has the last answer": ("ended", "answered"),
    "the server: aggregation, record, next messages": ("answered", "next"),
}


class Lab:
    """A federation on this machine."""

    def __init__(self, folder: Path) -> None:
        """Make certificates; start nothing."""
        self.folder = folder
        self.port, self.control = free_port(), free_port()
        self.started: list[subprocess.Popen[bytes]] = []
        shutil.rmtree(folder, ignore_errors=True)
        installed = folder / "installed" / "timed-1.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Name: timed\nVersion: 1\n")
        (installed / "entry_points.txt").write_text(
            "[fcl_flower.algorithms]\ntimed = timed:TIMED\n"
        )
        places = (ROOT, HERE, installed.parent.absolute())
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
        }
        self.fcl("certs", "certs", "certs", "--host", "localhost", "--clients", 2)
        self.ended()

    def fcl(self, log: str, *arguments: object) -> None:
        """Start a command of ours; its output goes into a log of that name."""
        command = [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)]
        self.start(log, command, self.environment)

    def start(
        self, log: str, command: Sequence[str], environment: dict[str, str]
    ) -> None:
        """Start any command."""
        with (self.folder / f"{log}.log").open("w") as file:
            self.started.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            )

    def ended(self) -> None:
        """Wait until the command that was started last has ended well."""
        process = self.started.pop()
        try:
            code = process.wait(PATIENCE)
        finally:
            process.terminate()  # nothing if it has ended
            process.wait()
        if code:
            raise RuntimeError(f"code {code}: see the logs in {self.folder}")

    def end(self, but: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """End all that was started and is not to stay."""
        for process in self.started:
            if process not in but:
                process.terminate()
                process.wait()
        self.started = list(but)

    def until(self, log: str, text: str) -> None:
        """Wait until a command has said something."""
        path, deadline = self.folder / f"{log}.log", time.monotonic() + PATIENCE
        while text not in path.read_text():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{path} never said {text!r}")
            time.sleep(0.2)


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Yield a federation whose server is up, and end it whatever happens."""
    made = Lab(folder)
    try:
        made.fcl(
            "server",
            *("server", "--certs", "certs", "--host", "127.0.0.1"),
            *("--port", made.port, "--control-port", made.control),
        )
        made.until("server", "registered client-1.pub")
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def clients(one: Lab, worker: str) -> Iterator[None]:
    """Have two clients in a federation, with a worker or without."""
    before = list(one.started)
    for number in (0, 1):
        one.fcl(
            f"client-{number}",
            *("client", "--server", f"localhost:{one.port}", worker),
            *("--certs", "certs", "--number", number),
        )
    try:
        for number in (0, 1):
            one.until(f"client-{number}", "SuperNode ID")
        yield
    finally:
        one.end(before)


def ours(one: Lab, name: str, rounds: int) -> list[dict[str, Any]]:
    """Run our loop; return the moments of its rounds."""
    blank = RunConfig().flat()
    given = {
        k: v for k, v in WORK.replace(rounds=rounds).flat().items() if v != blank[k]
    }
    settings = [part for k, v in given.items() for part in ("--set", f"{k}={toml(v)}")]
    one.fcl(
        name,
        *("run", "--server", f"127.0.0.1:{one.control}", "--certs", "certs"),
        *(*settings, "--output", name),
    )
    one.ended()
    lines = (one.folder / name / "journal.jsonl").read_text().splitlines()
    told = [
        event["told"] for event in map(json.loads, lines) if "replies" in event["told"]
    ]
    return [
        {**one_round["diagnostics"], "clients": list(one_round["replies"].values())}
        for one_round in told
    ]


def flowers(one: Lab, name: str, rounds: int) -> list[dict[str, Any]]:
    """Run Flower's FedAvg; return the moments of its rounds."""
    app, output = one.folder / f"{name}-app", one.folder / f"{name}.json"
    config = WORK.replace(rounds=rounds, output=str(output.absolute()))
    write_app(app, config, ("plain:server_app", "plain:client_app"))
    home = (one.folder / "flower-of-user").absolute()
    authority = (one.folder / "certs" / "ca.crt").absolute()
    write_superlink(home, f"127.0.0.1:{one.control}", authority)
    command = [program("flwr"), "run", str(app.absolute()), SUPERLINK, "--stream"]
    path = one.environment["PYTHONPATH"]
    one.start(name, command, {**environment(home), "PYTHONPATH": path})
    one.ended()
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


RESIDENT, FRESH = "--resident", "--no-resident"
LOOPS: dict[str, tuple[Callable[[Lab, str, int], list[dict[str, Any]]], str]] = {
    "ours": (ours, RESIDENT),
    "ours, a process a message": (ours, FRESH),
    "Flower's": (flowers, FRESH),
}


def parts(rounds: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return seconds by part for all rounds but the first and the last.

    The first one starts everything, and after the last one ours is tested. A round's
    client is the one that ended last.
    """
    found = []
    for one, following in pairwise(rounds[1:]):
        slowest = max(one["clients"], key=lambda client: client["ended"])
        at = {**slowest, **one, "next": following["asked"]}
        found.append(
            {part: at[end] - at[start] for part, (start, end) in PARTS.items()}
        )
    return found


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with lab(options.folder.absolute() / "lab") as one:
        for pair in range(options.pairs):
            for number, (loop, (run, worker)) in enumerate(LOOPS.items()):
                load = os.getloadavg()[0]
                with clients(one, worker):
                    measured = run(one, f"run-{pair}-{number}", options.rounds)
                rows += [
                    {"loop": loop, "pair": pair, "load": load, **seconds}
                    for seconds in parts(measured)
                ]
    with (options.folder / "rounds.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print_tables(rows, options.pairs)


def print_tables(rows: Sequence[dict[str, Any]], pairs: int) -> None:
    """Print seconds per round, the ratio of each pair, and where the time goes."""

    def lengths(loop: str, pair: int | None = None) -> list[float]:
        chosen = [r for r in rows if r["loop"] == loop and pair in (None, r["pair"])]
        return [sum(row[part] for part in PARTS) for row in chosen]

    print(
        "| loop | rounds | median s | least | most |\n| --- | --- | --- | --- | --- |"
    )
    for loop in LOOPS:
        all_of = lengths(loop)
        print(
            f"| {loop} | {len(all_of)} | {statistics.median(all_of):.2f} "
            f"| {min(all_of):.2f} | {max(all_of):.2f} |"
        )
    print()
    for other in [loop for loop in LOOPS if loop != "ours"]:
        ratios = [
            statistics.median(lengths("ours", pair))
            / statistics.median(lengths(other, pair))
            for pair in range(pairs)
        ]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"ours / {other}, by pair: {shown}")
    loads = [row["load"] for row in rows]
    print(f"load of the machine: {min(loads):.1f} to {max(loads):.1f}\n")
    print(f"| median s | {' | '.join(LOOPS)} |\n| --- |{' --- |' * len(LOOPS)}")
    for part in PARTS:
        medians = [
            statistics.median(row[part] for row in rows if row["loop"] == loop)
            for loop in LOOPS
        ]
        print(f"| {part} | {' | '.join(f'{median:.2f}' for median in medians)} |")


if __name__ == "__main__":
    main()
