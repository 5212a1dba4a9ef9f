"""Tables over several runs: one row a title, mean and deviation over its seeds.

Works on summaries alone (``summary.json``). A federated run is paired with the
local-only run of the same seed that its summary names as its counterpart; the
difference of their accuracies is the transfer gain.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fcl_flower.results import measures

Summary: TypeAlias = Mapping[str, Any]
MeanAndStd: TypeAlias = Mapping[str, float | None]
"""``mean`` and ``deviation`` over seeds; no deviation of a single seed."""

ALIKE = ("seed", "scenario", "dataset", "model", "clients", "tasks")
"""Keys of a summary that two runs must have in common for forward transfer."""

MEANS: Mapping[str, str] = {
    **{
        key: key
        for key in (
            *("average_accuracy", "forgetting", "backward_transfer"),
            *("honest_accuracy", "balanced_accuracy", "macro_f1"),
            "inferred_task_accuracy",
        )
    },
    "before_aggregation": "before_aggregation.average_accuracy",
    **{
        key: f"concepts.{key}"
        for key in ("ari", "ari_least", "perfect_rounds", "effectiveness")
    },
}
"""The measures with mean and deviation: their place in a summary, by the row's key."""

COSTS = (
    *("bytes_up", "bytes_down", "nominal_bytes_up", "nominal_bytes_down"),
    *("model_bytes", "seconds", "peak_memory", "multiply_adds"),
)
"""Keys of which a row has the mean alone."""

NOTE = (
    "Last round, mean over clients and tasks, ± standard deviation over the seeds. "
    "Forgetting: catastrophic forgetting, best earlier accuracy minus the final one. "
    "Bytes are those of the whole run and all clients; nominal bytes are the papers' "
    "count: 4 for each non-zero parameter. The model is what one client keeps at the "
    "end. The transfer gain is the accuracy minus that of the local-only run with the "
    "same seed."
)


class Column(NamedTuple):
    """A column of a table.

    One with a note is for runs that have something for it; the note explains it below.
    """

    head: str
    key: str
    note: str | None = None


COLUMNS = (
    Column("method", "label"),
    Column("seeds", "seeds"),
    Column("accuracy", "average_accuracy"),
    Column(
        "balanced accuracy",
        "balanced_accuracy",
        "Balanced accuracy: mean over a task's classes of the fraction of their "
        "samples that were answered rightly.",
    ),
    Column("forgetting", "forgetting"),
    Column("transfer gain", "transfer_gain"),
    Column("up", "bytes_up"),
    Column("down", "bytes_down"),
    Column("nominal up", "nominal_bytes_up"),
    Column("model", "model_bytes"),
    Column(
        "before aggregation",
        "before_aggregation",
        "Before aggregation: the accuracy of what each client has trained itself in "
        "the last round; strategies that predict with what clients keep have no other.",
    ),
    Column(
        "forward transfer",
        "forward_transfer",
        "Forward transfer: accuracy on a task just after it was learned, minus that of "
        "a fresh model that learned nothing else, with the same seed; mean over all "
        "tasks but the first.",
    ),
    Column("macro F1", "macro_f1", "Macro F1: mean over a task's classes of F1."),
    Column(
        "honest clients",
        "honest_accuracy",
        "Honest clients: the accuracy without the clients that were made hostile.",
    ),
    Column(
        "ARI",
        "ari",
        "Hidden concepts: adjusted Rand index of the server's clusters against the "
        "concepts, mean and least over the rounds; fraction of the rounds in which it "
        "is 1; fraction of the updates that went into the concept model which their "
        "client had started from.",
    ),
    Column("least ARI", "ari_least", ""),
    Column("perfect rounds", "perfect_rounds", ""),
    Column("matching effectiveness", "effectiveness", ""),
    Column(
        "accuracy over samples",
        "sample_accuracy",
        "Class-incremental: accuracy over the test samples of all classes so far, "
        "after the last task; average incremental accuracy: its mean over the ends of "
        "all tasks.",
    ),
    Column("average incremental accuracy", "average_incremental_accuracy", ""),
)


class TextTable(NamedTuple):
    """`rows` as text: heads and cells of the columns, and a note that explains them."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str


def table(summaries: Sequence[Summary]) -> str:
    """Write `rows` as a Markdown table, with a note below that explains it."""
    head, cells, note = text_table(summaries)
    return f"{markdown(head, cells)}\n\n{note}\n"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    found = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*found, *(f"| {' | '.join(line)} |" for line in lines)])


def text_table(summaries: Sequence[Summary]) -> TextTable:
    """Write `rows` with the columns that they have something for."""
    found = rows(summaries)
    shown = [
        one for one in COLUMNS if one.note is None or any(row[one.key] for row in found)
    ]
    lines = [[_cell(row, one.key) for one in shown] for row in found]
    note = " ".join([NOTE, *(one.note for one in shown if one.note)])
    return TextTable([one.head for one in shown], lines, note)


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key == "label":
        return str(row[key])
    if key == "seeds":
        return ", ".join(map(str, row[key]))
    if key in COSTS:
        return f"{row[key] / 1e6:.1f} MB"
    form = "+.3f" if key in ("forward_transfer", "transfer_gain") else ".3f"
    return format_mean_std(row.get(key), form)


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Make a row for each title, in the order in which titles first occur."""
    by_title: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        by_title.setdefault(summary["label"], {})[summary["seed"]] = summary
    return [_row(title, by_title) for title in by_title]


def mean_and_std(values: Iterable[float | None]) -> MeanAndStd | None:
    """Compute mean and standard deviation (n - 1) of what is known; None if nothing is.

    A single value has no deviation: that is None, not 0.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "deviation": deviation}


def format_mean_std(value: MeanAndStd | None, form: str = ".3f") -> str:
    """Write ``mean ± deviation``; nothing for None."""
    if value is None:
        return ""
    mean, deviation = f"{value['mean']:{form}}", value["deviation"]
    return mean if deviation is None else f"{mean} ± {deviation:.3f}"


def _row(title: str, by_title: Mapping[str, Mapping[int, Summary]]) -> dict[str, Any]:
    runs = by_title[title]
    row: dict[str, Any] = {"label": title, "seeds": sorted(runs)}
    for key, place in MEANS.items():
        row[key] = mean_and_std(_at(run, place) for run in runs.values())
    for key in COSTS:
        known = mean_and_std(run.get(key) for run in runs.values())
        row[key] = None if known is None else known["mean"]
    last, average = zip(*map(_accuracy_over_classes_seen, runs.values()), strict=True)
    row["sample_accuracy"] = mean_and_std(last)
    row["average_incremental_accuracy"] = mean_and_std(average)
    every = [run for of_title in by_title.values() for run in of_title.values()]
    transfers = (_forward_transfer(run, every) for run in runs.values())
    row["forward_transfer"] = mean_and_std(transfers)
    counterparts = by_title.get(next(iter(runs.values()))["counterpart"] or "", {})
    pairs = [
        (run, counterparts[seed])
        for seed, run in sorted(runs.items())
        if seed in counterparts
        and run.get("hidden") == counterparts[seed].get("hidden")
    ]
    if pairs:
        row["transfer_gain"] = mean_and_std(_gain(*pair) for pair in pairs)
        row["transfer_gain_per_task"] = _gain_per_task(pairs)
    return row


def _at(summary: Summary, place: str) -> float | None:
    found: Any = summary
    for name in place.split("."):
        found = (found or {}).get(name)
    return None if found is None else float(found)


def _forward_transfer(run: Summary, others: Sequence[Summary]) -> float | None:
    """Hold a run against the one of single tasks of the same seed, data and network."""
    single = [
        other
        for other in others
        # Hidden concepts are learned at no known time.
        if other.get("single_task") and other.get("hidden") is None
    ]
    alone = [one for one in single if all(one.get(k) == run.get(k) for k in ALIKE)]
    if len(alone) != 1 or run in single:
        return None
    accuracies = (np.array(one["client_accuracy"], float) for one in (run, *alone))
    found = measures.forward_transfer(*accuracies)
    return None if np.isnan(found) else found


def _accuracy_over_classes_seen(summary: Summary) -> tuple[float | None, float | None]:
    """Take that of a class-incremental run: the last, and the mean over tasks."""
    seen = summary.get("sample_accuracy", [])
    if summary.get("scenario") != "class-incremental" or None in seen or not seen:
        return None, None
    return seen[-1], measures.average_incremental_accuracy(np.array(seen))


def _gain(federated: Summary, local_only: Summary) -> float | None:
    accuracy, baseline = (s["average_accuracy"] for s in (federated, local_only))
    return None if accuracy is None or baseline is None else accuracy - baseline


def _gain_per_task(pairs: Sequence[tuple[Summary, Summary]]) -> list[float | None]:
    gains = [
        measures.transfer_gain(
            np.array(federated["client_accuracy"], float),
            np.array(local_only["client_accuracy"], float),
        )
        for federated, local_only in pairs
    ]
    by_task = [measures.mean_measured(gain, axis=0) for gain in gains]
    mean = measures.mean_measured(np.array(by_task), axis=0)
    return [None if np.isnan(value) else float(value) for value in mean]
