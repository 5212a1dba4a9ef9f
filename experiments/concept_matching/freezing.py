"""How often a rule of matching freezes a concept model.

python experiments/concept_matching/freezing.py DIR

DIR holds what ``fcl study experiments/concept_matching/matching.toml`` wrote. A concept
model is frozen in a round if clients started from it, but no cluster went into it. The
table has the share of all concept models that clients started from, by rule.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from fcl_flower.core.diagnostics import Clustering, Points
from fcl_flower.results.record import Record, read
from fcl_flower.results.tables import format_mean_std, mean_and_std


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs: dict[str, list[Record]] = defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        record = read(path.parent)
        if frames(record):
            runs[record.about.label].append(record)
    print("| rule and start | seeds | frozen | accuracy |\n| --- | --- | --- | --- |")
    for label, members in runs.items():
        ends = [frozen(frames(run)) for run in members]
        accuracy = [run.summary.average_accuracy or np.nan for run in members]
        seeds = ", ".join(str(run.about.seed) for run in members)
        cells = [format_mean_std(mean_and_std(values)) for values in (ends, accuracy)]
        print("|", label, "|", seeds, "|", " | ".join(cells), "|")


def frames(run: Record) -> list[Clustering]:
    """Look up the clusterings of a run, one a round."""
    found = [one for one in run.diagnostics.values() if isinstance(one, Points)]
    return found[0].frames if found else []


def frozen(rounds: list[Clustering]) -> float:
    """Return the share of the used concept models that no cluster reached."""
    used = sum(len(set(one.origin)) for one in rounds)
    lost = sum(len(set(one.origin) - set(one.reached)) for one in rounds)
    return lost / used


if __name__ == "__main__":
    main()
