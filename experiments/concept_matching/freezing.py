"""How often a rule of matching freezes a concept model, drawn over the rounds.

python experiments/concept_matching/freezing.py DIR

DIR holds what ``fcl study experiments/concept_matching/matching.toml`` wrote. A
concept model is frozen in a round if clients started from it, but no cluster went into
it. Prints a table, and writes freezing.html into DIR: of the concept models that
clients started from, the share frozen so far in the run, mean over the seeds.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.html.content import Section
from fcl_flower.results.report.html.page import page, write_page
from fcl_flower.results.report.reader import Run, read_run
from fcl_flower.results.report.schema import Clustering
from fcl_flower.results.tables import format_mean_std, mean_and_std


def main() -> None:
    """Print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(folder.glob("*/concepts.json")):
        run = read_run(path.parent)
        runs[run.summary.label].append(run)
    print("| rule and start | seeds | frozen | accuracy |\n| --- | --- | --- | --- |")
    series = []
    for number, (label, members) in enumerate(runs.items()):
        shares = np.array([frozen_so_far(run.clusterings or []) for run in members])
        accuracy = [run.summary.average_accuracy or np.nan for run in members]
        seeds = ", ".join(str(run.summary.seed) for run in members)
        ends = [float(share) for share in shares[:, -1]]
        cells = [format_mean_std(mean_and_std(values)) for values in (ends, accuracy)]
        print("|", label, "|", seeds, "|", " | ".join(cells), "|")
        rounds = np.arange(1, shares.shape[1] + 1)
        colour = f"var(--c{number % 8})"
        series.append(Series(label, rounds, shares.mean(0), colour))
    picture = lines(
        series,
        "round",
        "Frozen concept models by rule",
        "share frozen so far",
    )
    text = page(
        "How often concept models freeze",
        "Concept Matching: the paper's rule, a relaxed record, one-to-one assignment",
        [
            Section(
                "Concept models that clients started from and no cluster reached",
                "Share of all such models up to a round, mean over seeds.",
                picture,
            )
        ],
        f"Made from concepts.json in the folders of {folder.name}.",
    )
    write_page(folder / "freezing.html", text)


def frozen_so_far(rounds: list[Clustering]) -> npt.NDArray[np.float64]:
    """Return by round the share of used concept models that were frozen until then."""
    used = np.cumsum([len(set(one.origin)) for one in rounds])
    lost = np.cumsum([len(set(one.origin) - set(one.reached)) for one in rounds])
    return np.asarray(lost / used, np.float64)


if __name__ == "__main__":
    main()
