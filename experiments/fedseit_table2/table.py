"""Put the tables of all data sets side by side, and the paper's figures below ours.

python experiments/fedseit_table2/table.py DIR > experiments/fedseit_table2/table.md

DIR holds what ``fcl study`` wrote: ``lambda2-1.0/trec/table.json`` and so on. A cell
says on how many seeds it was measured; an empty one was not.
"""

import json
import sys
from pathlib import Path
from typing import Any

DATA = ("r8", "tmn", "trec", "trec:fine", "subj")
NAMES = ("R8", "TMN", "TREC6", "TREC50", "SUBJ")
ROWS = {
    "fedweit local-only": "alone",
    "fedavg masked single head": "FedAvg, one head, masked",
    "fedweit": "FedWeIT",
    "fedweit sit-3": "FedWeIT + SIT, K = 3",
    "fedseit": "FedSeIT",
    "fedseit inert": "FedSeIT, alpha = 0",
    "fedseit sit-3": "FedSeIT + SIT, K = 3",
    "fedseit sit-5": "FedSeIT + SIT, K = 5",
    "fedseit dls": "FedSeIT + DLS",
    "fedseit sit-3 dls": "FedSeIT + DLS + SIT, K = 3",
    "fedseit sit-5 dls": "FedSeIT + DLS + SIT, K = 5",
}
PAPER = {
    "1.0": {
        "fedweit": (79.1, 84.2, 78.2, 85.1, 86.5),
        "fedseit": (90.5, 88.2, 83.6, 88.4, 88.5),
        "fedseit sit-3": (90.5, 88.3, 83.6, 88.5, 88.6),
        "fedseit sit-5": (90.6, 88.6, 83.3, 88.7, 89.5),
        "fedseit dls": (83.1, 84.7, 78.2, 86.4, 88.9),
        "fedseit sit-3 dls": (82.3, 84.3, 78.3, 86.3, 89.7),
        "fedseit sit-5 dls": (82.4, 83.6, 77.7, 85.2, 89.0),
    },
    "0.1": {
        "fedweit": (68.1, 80.9, 77.1, 76.1, 85.6),
        "fedseit": (89.9, 88.5, 84.7, 81.2, 89.1),
        "fedseit sit-3": (89.9, 88.4, 84.9, 81.2, 88.8),
        "fedseit sit-5": (89.7, 88.3, 84.7, 80.9, 90.4),
        "fedseit dls": (60.7, 72.8, 78.3, 69.8, 88.1),
        "fedseit sit-3 dls": (61.9, 73.3, 78.9, 69.4, 90.2),
        "fedseit sit-5 dls": (65.3, 71.1, 76.8, 68.9, 84.2),
    },
}
"""Table 2 of Chaudhary et al., Findings of EMNLP 2022: task-averaged test accuracy."""


def main(folder: Path) -> None:
    """Print one table for each lambda2 that has results."""
    for lambda2, paper in PAPER.items():
        found = {name: _rows(folder / f"lambda2-{lambda2}" / name) for name in DATA}
        if not any(found.values()):
            continue
        print(f"lambda2 = {lambda2}: accuracy in percent (gain over training alone)\n")
        print("| | " + " | ".join(NAMES) + " |")
        print("| --- |" + " --- |" * len(NAMES))
        for label, title in ROWS.items():
            cells = [_cell(found[name].get(label)) for name in DATA]
            if any(cells):
                print(f"| {title} | " + " | ".join(cells) + " |")
            if any(cells) and label in paper:
                print(
                    "| *paper* | " + " | ".join(f"*{v}*" for v in paper[label]) + " |"
                )
        print()


def _rows(folder: Path) -> dict[str, Any]:
    try:
        rows = json.loads((folder / "table.json").read_text())
    except FileNotFoundError:
        return {}
    return {row["label"]: row for row in rows}


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    accuracy, gain = row["average_accuracy"], row.get("transfer_gain")
    text = f"{100 * accuracy['mean']:.1f}"
    if accuracy["deviation"] is not None:
        text += f" ± {100 * accuracy['deviation']:.1f}"
    if gain is not None:
        text += f" ({100 * gain['mean']:+.1f})"
    return f"{text}, n={len(row['seeds'])}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
