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

from fcl_flower.core.diagnostics import Clustering, Points
from fcl_flower.results.record import Record, read
from fcl_flower.results.report.charts import Series, category_colour, line_chart
from fcl_flower.results.report.page import Section, page, write_page
from fcl_flower.results.tables import format_mean_std, mean_and_std


def main() -> None:
    """Print the table and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    runs: dict[str, list[Record]] = defaultdict(list)
    for path in sorted(folder.glob("*/summary.json")):
        record = read(path.parent)
        if frames(record):
            runs[record.about.label].append(record)
    print("| rule and start | seeds | frozen | accuracy |\n| --- | --- | --- | --- |")
    series = []
    for number, (label, members) in enumerate(runs.items()):
        shares = np.array([frozen_so_far(frames(run)) for run in members])
        accuracy = [run.summary.average_accuracy or np.nan for run in members]
        seeds = ", ".join(str(run.about.seed) for run in members)
        ends = [float(share) for share in shares[:, -1]]
        cells = [format_mean_std(mean_and_std(values)) for values in (ends, accuracy)]
        print("|", label, "|", seeds, "|", " | ".join(cells), "|")
        rounds = range(1, shares.shape[1] + 1)
        colour = category_colour(number)
        series.append(Series(label, rounds, shares.mean(0), colour))
    what = "Frozen concept models by rule"
    picture = line_chart(what, "round", series, "share frozen so far")
    text = page(
        "How often concept models freeze",
        "Concept Matching: the paper's rule, a relaxed record, one-to-one assignment",
        [
            Section(
                "Concept models that clients started from and no cluster reached",
                "Share of all such models up to a round, mean over seeds.",
                [picture],
            )
        ],
        f"Made from the clusterings in the folders of {folder.name}.",
    )
    write_page(folder / "freezing.html", text)


def frames(run: Record) -> list[Clustering]:
    """Look up the clusterings of a run, one a round."""
    found = [one for one in run.diagnostics.values() if isinstance(one, Points)]
    return found[0].frames if found else []


def frozen_so_far(rounds: list[Clustering]) -> npt.NDArray[np.float64]:
    """Return by round the share of used concept models that were frozen until then."""
    used = np.cumsum([len(set(one.origin)) for one in rounds])
    lost = np.cumsum([len(set(one.origin) - set(one.reached)) for one in rounds])
    return np.asarray(lost / used, np.float64)


if __name__ == "__main__":
    main()
