"""A row for each method: mean and deviation over seeds, paired test, intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcl_flower.core.errors import unknown
from fcl_flower.exports.sheets import COSTS, Sheet
from fcl_flower.exports.significance import Paired, Unit, adjusted, paired
from fcl_flower.results import tables
from fcl_flower.results.metrics import mean_measured
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
    *("reference", "difference", "difference_deviation", "difference_margin", "pairs"),
    *("p", "p_adjusted", "client_difference", "client_margin", "client_pairs"),
)


def methods_sheet(results: Sequence[Result], reference: str | None = None) -> Sheet:
    """Return a row for each method, in the order in which they first occur.

    The test is over the seeds, whose runs are independent. ``client_margin`` is that of
    a mean over all clients of all seeds, which is narrower than the truth as far as
    clients of a run gain or lose together.

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
    tests = _tests({one: _by_seed(results, one) for one in labels}, against)
    clients = _tests({one: _by_client(results, one) for one in labels}, against)
    corrected = adjusted([None if test is None else test.p for test in tests])
    told = (
        _values(row) | _tested(test, against, p) | _held(of_clients)
        for row, test, p, of_clients in zip(
            rows, tests, corrected, clients, strict=True
        )
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


def _by_client(results: Sequence[Result], label: str) -> dict[tuple[int, int], float]:
    """Return the final accuracy of each seed's clients, mean over tasks, if known."""
    return {
        (one.summary["seed"], client): float(value)
        for one in results
        if one.summary["label"] == label
        for client, value in enumerate(mean_measured(one.accuracy[:, -1], axis=1))
        if not np.isnan(value)
    }


def _tests(
    values: Mapping[str, Mapping[Unit, float]], against: str
) -> list[Paired | None]:
    """Return each method's paired test; None where there is nothing to pair."""
    other = values[against]
    return [
        paired(own, other) if label != against and own.keys() & other.keys() else None
        for label, own in values.items()
    ]


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
        "difference_margin": test.margin,
        "pairs": test.pairs,
        "p": test.p,
        "p_adjusted": p,
    }


def _held(test: Paired | None) -> dict[str, Any]:
    if test is None:
        return {}
    return {
        "client_difference": test.difference,
        "client_margin": test.margin,
        "client_pairs": test.pairs,
    }
