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
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fcl_flower.config.parsing import toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.deploy.commands import (
    SUPERLINK,
    environment,
    program,
    write_superlink,
)
from fcl_flower.deploy.submission import write_app

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import LocalFederation

HERE = Path(__file__).parent
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


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[LocalFederation]:
    """Yield a federation whose server is up, and end it whatever happens."""
    shutil.rmtree(folder, ignore_errors=True)
    made = LocalFederation(folder, algorithm="timed:TIMED", beside=HERE)
    try:
        made.certificates(clients=2)
        made.server()
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def clients(one: LocalFederation, worker: str) -> Iterator[None]:
    """Have two clients in a federation, with a worker or without."""
    names = ["client-0", "client-1"]
    try:
        for number in (0, 1):
            one.client(number, "--speedups", worker)
        for name in names:
            one.until(name, "SuperNode ID")
        yield
    finally:
        one.end(*names)


def ours(one: LocalFederation, name: str, rounds: int) -> list[dict[str, Any]]:
    """Run our loop; return the moments of its rounds."""
    blank = RunConfig().flat()
    given = {
        k: v for k, v in WORK.replace(rounds=rounds).flat().items() if v != blank[k]
    }
    settings = [part for k, v in given.items() for part in ("--set", f"{k}={toml(v)}")]
    one.run(*settings, "--output", name, name=name)
    one.finish(name, PATIENCE)
    lines = (one.folder / name / "journal.jsonl").read_text().splitlines()
    told = [
        event["told"] for event in map(json.loads, lines) if "replies" in event["told"]
    ]
    return [
        {**one_round["diagnostics"], "clients": list(one_round["replies"].values())}
        for one_round in told
    ]


def flowers(one: LocalFederation, name: str, rounds: int) -> list[dict[str, Any]]:
    """Run Flower's FedAvg; return the moments of its rounds."""
    app, output = one.folder / f"{name}-app", one.folder / f"{name}.json"
    config = WORK.replace(rounds=rounds, output=str(output.absolute()))
    write_app(app, config, ("plain:server_app", "plain:client_app"))
    home = (one.folder / "flower-of-user").absolute()
    authority = (one.folder / "certs" / "ca.crt").absolute()
    write_superlink(home, f"127.0.0.1:{one.control}", authority)
    command = [program("flwr"), "run", str(app.absolute()), SUPERLINK, "--stream"]
    path = one.environment["PYTHONPATH"]
    one.start(name, command, environment={**environment(home), "PYTHONPATH": path})
    one.finish(name, PATIENCE)
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


RESIDENT, FRESH = "auto", "off"
LOOPS: dict[
    str, tuple[Callable[[LocalFederation, str, int], list[dict[str, Any]]], str]
] = {
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
