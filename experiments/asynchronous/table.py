"""What asynchronous clients know in the end, and when, beside synchronous ones.

python experiments/asynchronous/table.py DIR

DIR holds what ``fcl study experiments/asynchronous/study.toml`` wrote. The table says
when the fast clients and the slow one had learned their last task, in rounds of a fast
client, and the accuracy of each task in the end.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fcl_flower.results.tables import format_mean_std, mean_and_std

SLOW = 3
"""The number of the client that takes longer."""


class Score(NamedTuple):
    """An accuracy, and when it was measured."""

    time: float
    client: int
    learned: int
    task: int
    accuracy: float


class Run(NamedTuple):
    """The scores of one run."""

    label: str
    seed: int
    clients: int
    tasks: int
    scores: list[Score]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        run = read(path.parent)
        runs[run.label].append(run)
    print_table(runs)


def print_table(runs: Mapping[str, list[Run]]) -> None:
    """Print a row for each label, its runs being those of several seeds."""
    tasks = max(run.tasks for members in runs.values() for run in members)
    names = [f"task {task}" for task in range(tasks)]
    columns = ["run", "seeds", "fast end", "slow end", "accuracy", "slow", *names]
    print("|", " | ".join(columns), "|\n|", " | ".join("---" for _ in columns), "|")
    for label, members in runs.items():
        first, last = members[0], [final(run) for run in members]
        cells = [
            label,
            ", ".join(str(run.seed) for run in members),
            f"{max(ends(first, clients(first, slow=False))):g}",
            f"{max(ends(first, [SLOW])):g}",
            format_mean_std(mean_and_std(float(one.mean()) for one in last)),
            format_mean_std(mean_and_std(float(one[SLOW].mean()) for one in last)),
        ]
        by_task = zip(*(one.mean(0) for one in last), strict=True)
        cells += [
            format_mean_std(mean_and_std(map(float, values))) for values in by_task
        ]
        print("|", " | ".join(cells), "|")


def read(folder: Path) -> Run:
    """Return the scores in the folder of a run."""
    summary = json.loads((folder / "summary.json").read_text())
    times = {}
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        row = json.loads(line)
        times[row["round"]] = float(row["clock"])
    with (folder / "accuracy.csv").open(newline="") as file:
        scores = [
            Score(
                times[int(row["round"])],
                int(row["client"]),
                int(row["task_learned"]),
                int(row["task"]),
                float(row["accuracy"]),
            )
            for row in csv.DictReader(file)
        ]
    size = summary["clients"], summary["tasks"]
    return Run(summary["label"], summary["seed"], *size, scores)


def clients(run: Run, *, slow: bool) -> list[int]:
    """Return the numbers of the slow client, or of the others."""
    return [client for client in range(run.clients) if (client == SLOW) == slow]


def ends(run: Run, of: list[int]) -> list[float]:
    """Return when clients had learned their last task, and were tested on it."""
    last = run.tasks - 1
    return [
        min(s.time for s in run.scores if s.client == client and s.learned == last)
        for client in of
    ]


def final(run: Run) -> npt.NDArray[np.float64]:
    """Return the last accuracies, shape (clients, tasks); 0 where there are none."""
    found = np.zeros((run.clients, run.tasks))
    for score in sorted(run.scores, key=lambda s: s.time):
        found[score.client, score.task] = score.accuracy
    return found


if __name__ == "__main__":
    main()
