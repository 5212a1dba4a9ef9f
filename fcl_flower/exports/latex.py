"""The sheet of methods as a table for a paper, in LaTeX."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.exports.sheets import Sheet

MEASURES = {
    "average_accuracy": "accuracy",
    "forgetting": "forgetting",
    "forward_transfer": "forward transfer",
    "transfer_gain": "transfer gain",
}
"""Columns with mean and deviation, and their heads; those that nobody knows are out."""

NOTE = (
    r"% For booktabs. Mean $\pm$ standard deviation over seeds; bold: highest accuracy."
)
TEST = (
    "% Difference of accuracy to {reference}, seed by seed; p of the two-sided paired "
    "t-test, Holm-adjusted."
)
UNKNOWN = "--"

_ESCAPED = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def write_latex(methods: Sheet, folder: Path) -> Path:
    """Write the sheet of `methods_sheet` as a file that a paper may input."""
    path = folder / f"{methods.name}.tex"
    path.write_text(latex(methods), encoding="utf-8")
    return path


def latex(methods: Sheet) -> str:
    """Write the sheet of `methods_sheet` as a ``tabular``."""
    rows = [dict(zip(methods.columns, row, strict=True)) for row in methods.rows]
    known = [
        key for key in MEASURES if any(row[f"{key}_mean"] is not None for row in rows)
    ]
    means = [row["average_accuracy_mean"] for row in rows]
    best = max((mean for mean in means if mean is not None), default=None)
    reference = next((row["reference"] for row in rows if row["reference"]), None)
    head = ["method", *(MEASURES[key] for key in known)]
    notes = [NOTE]
    if reference is not None:
        head += ["difference", "$p$"]
        notes.append(TEST.format(reference=" ".join(reference.split())))
    return "\n".join(
        [
            *notes,
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            _line(head),
            r"\midrule",
            *(_line(_cells(row, known, best, reference is not None)) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _cells(
    row: Mapping[str, Any], known: Sequence[str], best: float | None, tested: bool
) -> list[str]:
    cells = [row["label"].translate(_ESCAPED)]
    for key in known:
        mean, deviation = row[f"{key}_mean"], row[f"{key}_deviation"]
        bold = key == "average_accuracy" and mean == best
        cells.append(_spread(mean, deviation, bold))
    if tested:
        cells += [_spread(row["difference"], None), _p(row["p_adjusted"])]
    return cells


def _spread(mean: float | None, deviation: float | None, bold: bool = False) -> str:
    if mean is None:
        return UNKNOWN
    number = rf"\mathbf{{{mean:z.3f}}}" if bold else f"{mean:z.3f}"
    return f"${number}$" if deviation is None else rf"${number} \pm {deviation:.3f}$"


def _p(p: float | None) -> str:
    if p is None:
        return UNKNOWN
    return "$<0.001$" if p < 0.001 else f"${p:.3f}$"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
