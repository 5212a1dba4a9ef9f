"""A row for each method: mean and deviation over seeds, and a paired test."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcl_flower.core.errors import unknown
from fcl_flower.exports.sheets import COSTS, Sheet
from fcl_flower.exports.significance import Paired, adjusted, paired
from fcl_flower.results import tables
from fcl_flower.results.result import Result

SPREAD = (
    *("average_accuracy", "forgetting", "backward_transfer", "forward_transfer"),
    *("transfer_gain", "balanced_accuracy", "macro_f1"),
)
"""Keys of `tables.rows` that have a mean and a standard deviation."""

COLUMNS = (
    "label",
    "seeds",
    *(f"{key}_{what}" for key in SPREAD for what in ("mean", "deviation")),
    *COSTS,
    *("reference", "difference", "difference_deviation", "pairs", "p", "p_adjusted"),
)


def methods_sheet(results: Sequence[Result], reference: str | None = None) -> Sheet:
    """Return a row for each method, in the order in which they first occur.

    Args:
        results: at least one.
        reference: label of the method against whose accuracy the others are tested;
            None for the one with the highest mean.

    Raises:
        ConfigError: no method has that label.
    """
    rows = tables.rows([result.summary for result in results])
    labels = [row["label"] for row in rows]
    if reference is not None and reference not in labels:
        raise unknown("reference", reference, labels)
    against = reference or _best(rows)
    accuracy = {label: _by_seed(results, label) for label in labels}
    tests = [
        None if label == against else _test(accuracy[label], accuracy[against])
        for label in labels
    ]
    corrected = adjusted([None if test is None else test.p for test in tests])
    told = (
        _values(row) | _tested(test, against, p)
        for row, test, p in zip(rows, tests, corrected, strict=True)
    )
    return Sheet.of("methods", COLUMNS, told)


def _best(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the label with the highest mean accuracy; the first of equal ones."""

    def accuracy(row: Mapping[str, Any]) -> float:
        known = row["average_accuracy"]
        return -1.0 if known is None else float(known["mean"])

    return str(max(rows, key=accuracy)["label"])


def _by_seed(results: Sequence[Result], label: str) -> dict[int, float]:
    """Return the accuracies of a method that are known."""
    found = (one.summary for one in results if one.summary["label"] == label)
    return {
        summary["seed"]: summary["average_accuracy"]
        for summary in found
        if summary["average_accuracy"] is not None
    }


def _test(method: Mapping[int, float], other: Mapping[int, float]) -> Paired | None:
    """Return the paired test; None where the two have no seed in common."""
    return paired(method, other) if method.keys() & other.keys() else None


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    spread = {
        f"{key}_{what}": (row.get(key) or {}).get(what)
        for key in SPREAD
        for what in ("mean", "deviation")
    }
    costs = {key: row[key] for key in COSTS}
    return {"label": row["label"], "seeds": len(row["seeds"]), **spread, **costs}


def _tested(test: Paired | None, reference: str, p: float | None) -> dict[str, Any]:
    if test is None:
        return {}
    return {
        "reference": reference,
        "difference": test.difference,
        "difference_deviation": test.deviation,
        "pairs": test.pairs,
        "p": test.p,
        "p_adjusted": p,
    }
