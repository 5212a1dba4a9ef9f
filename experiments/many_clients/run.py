"""What many clients with memories of their own take: processor time, memory, disk.

Digits are repeated until every client has some, so that the number of clients is all
that changes. One run a line, each in a process of its own; memory is the largest sum of
the resident sets of that process and all its children, looked at ten times a second.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from sklearn.datasets import load_digits

PER_CLASS = 3
"""Training samples of each class that a client has, one of them to validate with."""
CLASSES = 10
SECONDS = 0.1
COLUMNS = (
    *("strategy", "clients", "a round", "visits", "s", "CPU ms a visit"),
    *("peak MB", "disk MB"),
)


def main() -> None:
    """Run all that was asked for; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--strategies", nargs="+", default=["fedavg", "fedweit"])
    parser.add_argument("--a-round", type=int, default=0, help="clients; 0 for all")
    parser.add_argument("--tasks", type=int, default=2, help="of each client")
    parser.add_argument("--rounds", type=int, default=1, help="a task")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--set", action="append", default=[], help="more settings")
    given = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|")
    for clients in given.clients:
        for strategy in given.strategies:
            print(line(strategy, clients, given), flush=True)


def line(strategy: str, clients: int, given: argparse.Namespace) -> str:
    """Run once; return a line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_digits(folder / "many-digits.npz", clients)
        run = folder / "run"
        share = given.a_round / clients if given.a_round else 1.0
        settings = [f"federation.client_fraction={share!r}", *given.set]
        command = [
            *(sys.executable, "-m", "fcl_flower.cli.main", "simulate"),
            *("--strategy", strategy, "--dataset", "many-digits"),
            *("--data-root", str(folder), "--model", given.model),
            *("--clients", str(clients), "--tasks", str(given.tasks)),
            *("--rounds", str(given.rounds), "--seed", "1", "--output", str(run)),
            *("--set", "scenario.classes_per_task=5", "--set", "training.epochs=1"),
            *(word for setting in settings for word in ("--set", setting)),
        ]
        began = time.monotonic()
        peak, processor, disk = watched(command, run)
        seconds = time.monotonic() - began
        rows = (run / "rounds.jsonl").read_text().splitlines()
        trained = sum(len(json.loads(row)["clients"]) for row in rows)
    return (
        f"| `{strategy}` | {clients} | {given.a_round or clients} | {trained} "
        f"| {seconds:.0f} | {1000 * processor / trained:.1f} | {peak / 1e6:.0f} "
        f"| {disk / 1e6:.0f} |"
    )


def write_digits(path: Path, clients: int) -> None:
    """Write digits so often that each client has `PER_CLASS` of every class."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    train, test = np.arange(len(labels)) % 9 > 0, np.arange(len(labels)) % 9 == 0
    rows = [
        rng.choice(np.flatnonzero(train & (labels == label)), clients * PER_CLASS)
        for label in range(CLASSES)
    ]
    chosen = np.concatenate(rows)
    shaped = np.float32(images / 16)
    np.savez(
        path,
        x_train=shaped[chosen],
        y_train=labels[chosen],
        x_test=shaped[test],
        y_test=labels[test],
    )


def watched(command: list[str], run: Path) -> tuple[int, float, int]:
    """Run a command; return bytes of memory, processor seconds, bytes of disk."""
    before = os.times()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    tree, peak, disk, looked = psutil.Process(process.pid), 0, 0, time.monotonic()
    while process.poll() is None:
        peak = max(peak, resident(tree))
        # Counting ten thousand files takes its time.
        if time.monotonic() - looked > 10:
            looked, disk = time.monotonic(), max(disk, used(run))
        time.sleep(SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    after = os.times()
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    return peak, spent, max(disk, used(run))


def resident(tree: psutil.Process) -> int:
    """Return the memory of a process and its children; 0 if it is gone."""
    try:
        return sum(p.memory_info().rss for p in (tree, *tree.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def used(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk."""
    if not folder.exists() or shutil.which("du") is None:
        return 0
    found = subprocess.run(
        ["du", "-s", "-B1", folder], capture_output=True, text=True, check=False
    )
    return int(found.stdout.split()[0])


if __name__ == "__main__":
    main()
