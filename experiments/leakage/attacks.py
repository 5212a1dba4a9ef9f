"""What the messages of a run give away: three attacks, over some seeds.

python experiments/leakage/attacks.py [--seeds 1 2 3] FILE

Prints a table in Markdown; FILE, of JSON, has the value of every seed.
"""

import argparse
import json
from logging import WARNING, getLogger
from pathlib import Path

import class_sums
import label_counts
import membership
import numpy as np

ATTACKS = {
    "membership, AUC": [membership.of_fedweit, membership.of_fedavg],
    "label counts, correlation": [label_counts.of_fedavg],
    "membership in a class's sum, AUC by its samples": [class_sums.of_analytic],
}


def main() -> None:
    """Attack with each seed; write and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    getLogger("fcl_flower").setLevel(WARNING)
    found: dict[str, dict[str, list[float]]] = {}
    for title, attacks in ATTACKS.items():
        rows = found.setdefault(title, {})
        for seed in given.seeds:
            for attack in attacks:
                for row, value in attack(seed).items():
                    rows.setdefault(row, []).append(value)
    given.file.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Return means and standard deviations over seeds, as a table a heading."""
    blocks = []
    for title, rows in found.items():
        lines = [f"| {title} | value |", "| --- | --- |"]
        lines += [
            f"| {row} | {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f} |"
            for row, values in rows.items()
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    main()
