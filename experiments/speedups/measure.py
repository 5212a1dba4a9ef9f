"""What each speed-up of a deployment brings, in seconds of a round and in megabytes.

python experiments/speedups/measure.py DIR [--rounds 8] [--megabytes 75] [--only A,B]

Starts a server and two clients on this machine, over TLS and with keys: with all
speed-ups, with none, and with all but one, in turn. Each has a run of FedAvg on digits,
and one of a network with a single wide layer. Prints a table in Markdown, a row as it
is measured; DIR/rows.jsonl keeps them, and a row that is there is not measured again.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import LocalFederation

from fcl_flower.deploy.speedups import SPEEDUPS, choose

HERE = Path(__file__).parent
WIDE = HERE.parent / "large_updates"
SEED = 1
COLUMNS = ("s a round", "idle client MB", "s a large round", "server app MB", "disk MB")


def main() -> None:
    """Measure the rows that are missing, and print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=75)
    parser.add_argument("--only", default="", help="names of rows: A,B,...")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    file = given.folder / "rows.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    known = {row["name"]: row for row in map(json.loads, lines)}
    print(f"| speed-ups | {' | '.join(COLUMNS)} |\n|{' --- |' * 6}")
    for name, sets in rows().items():
        if given.only and name not in given.only.split(","):
            continue
        if name not in known:
            found = measured(given.folder / "lab", sets, given.rounds, given.megabytes)
            known[name] = {"name": name, **found}
            with file.open("a") as out:
                out.write(json.dumps(known[name]) + "\n")
        cells = (f"{known[name][column]:.1f}" for column in COLUMNS)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def rows() -> dict[str, tuple[str, str]]:
    """List the settings of server and client by the name of a row."""
    found = {"all": ("auto", "auto"), "none": ("off", "off")}
    every = {side: choose("auto", side).names for side in ("server", "client")}
    for name in SPEEDUPS:
        left = (
            ",".join(one for one in every[side] if one != name)
            for side in ("server", "client")
        )
        found[f"all but {name}"] = (next(left), next(left))
    return found


def measured(
    folder: Path, sets: tuple[str, str], rounds: int, megabytes: int
) -> dict[str, float]:
    """Measure one choice of speed-ups."""
    shutil.rmtree(folder, ignore_errors=True)
    server, client = sets
    lab = LocalFederation(folder, model="wide:WIDE", beside=WIDE)
    try:
        lab.certificates(clients=2)
        lab.server("--speedups", server)
        for number in (0, 1):
            lab.client(number, "--speedups", client)
            lab.until(f"client-{number}", "SuperNode ID")
        time.sleep(5.0)  # what is imported at the start has been
        idle = memory(lab.family("client-0"))
        common = ("--clients", 2, "--tasks", 1, "--seed", SEED, "--classes-per-task", 2)
        small = ("--strategy", "fedavg", *common, "--rounds", rounds)
        lab.run(*small, "--dataset", "digits", "--output", "small", name="small")
        lab.finish("small")
        wide = ("--model", "wide", "--set", f"model.megabytes={megabytes}")
        sgd = ("--set", "training.optimizer=sgd", "--learning-rate", 0.01)
        large = ("--strategy", "fedavg", *common, "--rounds", 3, "--dataset", "digits")
        lab.run(*large, *wide, *sgd, "--output", "large", name="large")
        most, disk = 0.0, 0.0
        while not lab.ended("large"):
            most = max(most, memory(apps(lab)))
            disk = max(disk, size(folder / "state-server"))
            time.sleep(0.2)
        lab.finish("large")
        return {
            COLUMNS[0]: seconds(folder / "small"),
            COLUMNS[1]: idle,
            COLUMNS[2]: seconds(folder / "large"),
            COLUMNS[3]: most,
            COLUMNS[4]: disk,
        }
    finally:
        lab.end()


def seconds(run: Path) -> float:
    """Take the median of a run's rounds, without the first, which has all starts."""
    lines = (run / "rounds.jsonl").read_text().splitlines()
    return statistics.median([json.loads(line)["seconds"] for line in lines[1:]])


def memory(processes: list[psutil.Process]) -> float:
    """Add up what processes have in memory for themselves, in MB."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().uss
        except psutil.Error:  # it has ended
            continue
    return total / 1e6


def apps(lab: LocalFederation) -> list[psutil.Process]:
    """Return the processes of server apps."""
    return [p for program, p in lab.members("server") if program == "flwr-serverapp"]


def size(folder: Path) -> float:
    """Add up the files in a folder, in MB."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it is gone
            continue
    return total / 1e6


if __name__ == "__main__":
    main()
