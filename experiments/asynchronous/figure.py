"""What asynchronous clients know, and when, beside synchronous ones.

python experiments/asynchronous/figure.py DIR

DIR holds what ``fcl study experiments/asynchronous/study.toml`` wrote. Prints a table:
when the fast clients and the slow one had learned their last task, in rounds of a fast
client, and the accuracy of each task in the end. Writes asynchronous.html into DIR: the
mean accuracy over all tasks of a stream, one that is not learned yet counting as 0,
over the time, mean over clients and seeds.
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

from fcl_flower.results.report.charts import Series, category_colour, line_chart
from fcl_flower.results.report.page import Section, page, write_page
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
    """Print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        run = read(path.parent)
        runs[run.label].append(run)
    print_table(runs)
    write_figure(runs, folder)


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


def write_figure(runs: Mapping[str, list[Run]], folder: Path) -> None:
    """Write ``asynchronous.html`` into ``folder``."""
    end = int(
        max(s.time for members in runs.values() for run in members for s in run.scores)
    )
    series = []
    for number, (label, members) in enumerate(runs.items()):
        known = np.array([known_over_time(run, end) for run in members])
        deviation = (
            known.std(0, ddof=1) if len(members) > 1 else np.full(end + 1, np.nan)
        )
        colour = category_colour(number)
        series.append(Series(label, range(end + 1), known.mean(0), colour, deviation))
    what, title = "What clients know over time", "mean accuracy over all tasks"
    picture = line_chart(what, "time", series, title)
    text = page(
        "Asynchronous and synchronous rounds",
        "One client of four takes four times as long as the others",
        [
            Section(
                "What clients know over time",
                "Accuracy over all tasks of a stream; a task that is not learned yet "
                "counts as 0. Time in rounds of a fast client. Mean over clients and "
                "seeds, ± standard deviation over the seeds.",
                [picture],
            )
        ],
        f"Made from accuracy.csv and rounds.jsonl in the folders of {folder.name}.",
    )
    write_page(folder / "asynchronous.html", text)


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
    """Return the last accuracies, shape (clients, tasks)."""
    return at(run, np.inf)


def at(run: Run, time: float) -> npt.NDArray[np.float64]:
    """Return the accuracies measured last until ``time``, 0 where there are none."""
    found = np.zeros((run.clients, run.tasks))
    for score in sorted(run.scores, key=lambda s: s.time):
        if score.time <= time:
            found[score.client, score.task] = score.accuracy
    return found


def known_over_time(run: Run, end: int) -> npt.NDArray[np.float64]:
    """Return the mean accuracy at each time from 0 to ``end``."""
    return np.array([at(run, time).mean() for time in range(end + 1)])


if __name__ == "__main__":
    main()
