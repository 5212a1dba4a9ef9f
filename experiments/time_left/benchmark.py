"""How the time that is left of a run, as it is foretold, compares with the truth.

python experiments/time_left/benchmark.py [--strategies fedavg,ewc,fedweit] DIR

Runs each strategy in this process and prints a table in Markdown. Seconds are of the
processor, so that what else runs on the machine does not count. DIR/NAME is the folder
of a run; one that has finished is not run again.
"""

import argparse
import json
import time
from pathlib import Path
from types import SimpleNamespace

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results import recorder
from fcl_flower.results.recorder import time_left
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_in_process

TASKS, ROUNDS = 5, 5
MOMENTS = {
    "the first task": ROUNDS,
    "one round of the second": ROUNDS + 1,
    "the second task": 2 * ROUNDS,
    "the fourth task": 4 * ROUNDS,
}
"""Rounds that are finished, by name."""


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", default="fedavg,ewc,fedweit")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    names = given.strategies.split(",")
    seconds = {name: durations(name, given.folder / name) for name in names}
    print(f"| left after | {' | '.join(f'`{name}`' for name in names)} |")
    print("| --- " * (len(names) + 1) + "|")
    for moment, finished in MOMENTS.items():
        cells = [cell(seconds[name], finished) for name in names]
        print(f"| {moment} | {' | '.join(cells)} |")


def durations(strategy: str, folder: Path) -> list[float]:
    """Return the processor seconds of each round of a run."""
    recorder.time = SimpleNamespace(monotonic=time.process_time)
    if not (folder / "summary.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = RunConfig.from_settings(
            strategy=strategy,
            clients=4,
            tasks=TASKS,
            classes_per_task=2,
            rounds=ROUNDS,
            epochs=6,
            seed=1,
        )
        run_in_process(resolve(config).config, folder)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def cell(seconds: list[float], finished: int) -> str:
    """Return what is foretold after some rounds, and the truth."""
    left = time_left(seconds[:finished], len(seconds))
    return f"{left:.1f}, truth {sum(seconds[finished:]):.1f}"


if __name__ == "__main__":
    main()
