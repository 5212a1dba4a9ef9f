"""FedWeIT's defaults beside half decades of ``lambda1``, on data that chose neither.

python experiments/fedweit_defaults/study.py --data-root DIR [--jobs 2]
python experiments/fedweit_defaults/study.py

The first command runs what is missing in ``grid.jsonl``, in hours. Both print the table
of README.md.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import fcl_flower as fcl

RUNS = Path(__file__).with_name("grid.jsonl")
SEEDS = (1, 2, 3)
Row = dict[str, Any]
Settings = Mapping[str, Any]

LENET = {"model": "lenet", "model.width": 0.4, "scenario": "overlapped"}
WORDS = {"model": "kim-cnn", "word_vectors": "googlenews_word2vec_300d_subset.txt.gz"}


def federation(
    dataset: str,
    classes: int,
    rounds: int,
    train: int,
    *,
    clients: int = 3,
    tasks: int = 3,
    test: int = 60,
) -> dict[str, Any]:
    """Describe who learns what, with ``train`` samples of each class of a client."""
    return {
        "datasets": dataset,
        "scenario": "overlapped",
        "clients": clients,
        "tasks": tasks,
        "classes_per_task": classes,
        "rounds": rounds,
        "max_train_per_class": train,
        "max_test_per_class": test,
    }


HELD_OUT: Mapping[str, Settings] = {
    "letters, 20 a class": LENET | federation("notmnist", 2, 8, 20, clients=4, tasks=4),
    "letters, 200, 20 rounds": LENET | federation("notmnist", 3, 20, 200, tasks=2),
    "objects, 60": LENET | federation("tinyimagenet32_100c", 5, 8, 60),
    "ResNet-18 on objects, 60": {"model": "resnet18"}
    | federation("tinyimagenet32_100c", 5, 8, 60, clients=2, tasks=2),
    "topics, 60": WORDS | federation("dbpedia", 3, 5, 60),
    "questions, 20": WORDS | federation("trec", 2, 8, 20),
    "activities, 60, 3 rounds": {"model": "har-cnn"}
    | federation("uci_har_raw9", 2, 3, 60),
    "a table of activities, 60": {"model": "mlp"} | federation("", 2, 8, 60),
}
GRID = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ALONE = {"local_only": True}
ROWS: Mapping[str, Settings] = {
    "defaults": {},
    "defaults, alone": ALONE,
    "a network a task": {"strategy": "stl"},
    "without masks": {"strategy.mask_rate": 0.0, "strategy.lambda_mask": 0.0},
    "follows wholly": {"strategy.follow": 1.0},
    **{f"lambda1 {value:g}": {"strategy.lambda1": value} for value in reversed(GRID)},
}


def table_of_activities(root: Path) -> tuple[Any, ...]:
    """Describe each window of UCI HAR by four numbers a channel: 36 columns."""
    with np.load(root / "har" / "uci_har_raw9.npz") as file:
        arrays = [
            np.concatenate([f(file[x].astype(np.float32), 2) for f in _COLUMNS], 1)
            if x.startswith("x")
            else file[x]
            for x in ("x_train", "y_train", "x_test", "y_test")
        ]
    return tuple(arrays)


_COLUMNS = (np.mean, np.std, np.min, np.max)


def run(job: tuple[str, Settings, str, Settings, int, Path]) -> Row:
    """Run one federation of a setting."""
    setting, about, row, more, seed, root = job
    settings = {"strategy": "fedweit", "seed": seed, "data_root": str(root)}
    settings |= {**about, **more, "threads": 1}
    data = None
    if not settings["datasets"]:
        data = table_of_activities(root)
        del settings["datasets"]
    began = time.monotonic()
    strategy = settings.pop("strategy")
    result = fcl.simulate(strategy, data=data, progress=False, **settings)
    summary = result.summary
    return {
        "setting": setting,
        "row": row,
        "seed": seed,
        "accuracy": summary["average_accuracy"],
        "seconds": round(time.monotonic() - began, 1),
    }


def finished() -> list[Row]:
    """Read the runs that are there."""
    return [json.loads(line) for line in RUNS.open()] if RUNS.exists() else []


def do(root: Path, jobs: int) -> None:
    """Do what is missing, seed by seed, and write each run as it ends."""
    done = {(row["setting"], row["row"], row["seed"]) for row in finished()}
    missing = [
        (setting, about, row, more, seed, root)
        for seed, (row, more), (setting, about) in product(
            SEEDS, ROWS.items(), HELD_OUT.items()
        )
        if (setting, row, seed) not in done
    ]
    missing.sort(key=lambda job: job[1]["model"] == "resnet18")  # those last: minutes
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(run, missing):
            with RUNS.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(found, flush=True)


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Collect the runs of each setting and row, by ascending seed."""
    cells = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seed"]):
        cells[row["setting"], row["row"]].append(row)
    return dict(cells)


def mean(rows: Sequence[Row], key: str) -> float:
    """Average a number over the seeds."""
    return statistics.mean(row[key] for row in rows)


def shown(rows: Sequence[Row]) -> str:
    """Show the mean accuracy and its standard deviation over the seeds."""
    found = [row["accuracy"] for row in rows]
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.3f} ± {spread:.3f}"


def grid_table() -> Iterator[str]:
    """Hold the default against the best of the grid, itself alone and its rival."""
    yield "| setting | default | alone | network per task | best of the grid | 1e-3 |"
    yield "| --- | --- | --- | --- | --- | --- |"
    cells = by_cell(finished())
    for setting in HELD_OUT:
        grid = {
            value: cells[setting, f"lambda1 {value:g}"]
            for value in GRID
            if (setting, f"lambda1 {value:g}") in cells
        }
        if (setting, "defaults") not in cells or not grid:
            continue
        best = max(grid, key=lambda value: mean(grid[value], "accuracy"))
        parts = ("defaults", "defaults, alone", "a network a task")
        numbers = [shown(cells[setting, part]) for part in parts]
        numbers += [f"{shown(grid[best])} ({best:g})", shown(grid[1e-3])]
        yield f"| {' | '.join([setting, *numbers])} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.data_root:
        do(given.data_root, given.jobs)
    print("\n".join(grid_table()))
