"""Tables over several runs: a row for each title, mean and deviation over its seeds.

They are made of summaries (``summary.json``) alone. A federated run is paired with the
local-only run of the same seed that its summary names as its counterpart. The
difference of their accuracies is the transfer gain.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fcl_flower.results import measures

Summary: TypeAlias = Mapping[str, Any]
MeanAndStd: TypeAlias = Mapping[str, float | None]
"""``mean`` and ``deviation`` over seeds; a single seed has no deviation."""

ALIKE = ("seed", "scenario", "dataset", "model", "clients", "tasks")
"""Keys of a summary that two runs must have in common for forward transfer."""

NOTE = (
    "Last round, mean over clients and tasks, ± standard deviation over the seeds. "
    "Forgetting: catastrophic forgetting, best earlier accuracy minus the final one. "
    "Bytes are those of the whole run and all clients; nominal bytes are the papers' "
    "count: 4 for each non-zero parameter. The model is what one client keeps at the "
    "end. The transfer gain is the accuracy minus that of the local-only run with the "
    "same seed."
)


class Measure(NamedTuple):
    """A measure of a run, for tables and pages.

    Attributes:
        key: key in a row, and in a summary unless `PLACES` has another place.
        name: name on pages.
        meaning: explanation, which may contain ``{noun}``: task or concept.
        form: the way to write the value; see `SPREAD_FORMS`.
    """

    key: str
    name: str
    meaning: str
    form: str = "fraction"


SPREAD_FORMS = ("fraction", "gain")
"""The forms of measures whose standard deviation over seeds is of interest."""

MEASURES = (
    Measure(
        "average_accuracy",
        "Average accuracy",
        "over all {noun}s at the last test, mean over clients",
    ),
    Measure(
        "balanced_accuracy",
        "Balanced accuracy",
        "mean over a task's classes of recall, the fraction of right answers",
    ),
    Measure(
        "average_incremental_accuracy",
        "Average incremental accuracy",
        "after each task, over all classes so far; mean over tasks",
    ),
    Measure(
        "final_sample_accuracy",
        "Sample accuracy",
        "over the test samples of all classes, after the last task",
    ),
    Measure(
        "inferred_task_accuracy",
        "Task unknown",
        "accuracy where the most confident head answers (fcl predict --task auto)",
    ),
    Measure(
        "before_aggregation", "Before aggregation", "accuracy of what clients trained"
    ),
    Measure("honest_accuracy", "Honest clients", "accuracy without hostile clients"),
    Measure("learning_accuracy", "Learning accuracy", "of tasks when learned"),
    Measure(
        "forgetting",
        "Catastrophic forgetting",
        "best earlier accuracy minus the final one; less is better",
    ),
    Measure(
        "backward_transfer",
        "Backward transfer",
        "final accuracy minus that when learned; more is better",
        "gain",
    ),
    Measure("macro_f1", "Macro F1", "mean over a task's classes of F1"),
    Measure(
        "token_loss",
        "Loss of a token",
        "nats for each token of the right answers at the last test; less is better",
    ),
    Measure(
        "transfer_gain",
        "Transfer gain",
        "average accuracy minus that of the local-only counterpart with the same seed",
        "gain",
    ),
    Measure(
        "forward_transfer",
        "Forward transfer",
        "accuracy on a task just after it was learned, minus that of a fresh model "
        "that learned nothing else, with the same seed; over all tasks but the first",
        "gain",
    ),
    Measure(
        "ari",
        "Clustering",
        "adjusted Rand index of the server's clusters, mean over rounds",
    ),
    Measure("ari_least", "Least clustering", "the smallest index of a round"),
    Measure(
        "effectiveness",
        "Matching effectiveness",
        "fraction of updates that went into the concept model they started from",
    ),
    Measure(
        "perfect_rounds",
        "Perfect rounds",
        "fraction of the rounds whose clusters are just the hidden concepts",
        "share",
    ),
    Measure("bytes_up", "Sent up", "in messages of clients", "bytes"),
    Measure("bytes_down", "Sent down", "in messages to clients", "bytes"),
    Measure("model_bytes", "Model size", "what one client must keep", "bytes"),
    Measure("peak_memory", "Peak memory", "of all processes of the server", "bytes"),
    Measure("multiply_adds", "Multiply-adds", "of clients' training", "count"),
    Measure("seconds", "Time", "from the first round on", "duration"),
    Measure("clock", "Simulated time", "at the end of the run", "number"),
)
"""The measures in the order of tiles and of a comparison's columns."""

COLUMNS = {
    "average_accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "forgetting": "forgetting",
    "transfer_gain": "transfer gain",
    "bytes_up": "up",
    "bytes_down": "down",
    "nominal_bytes_up": "nominal up",
    "model_bytes": "model",
    "before_aggregation": "before aggregation",
    "forward_transfer": "forward transfer",
    "macro_f1": "macro F1",
    "token_loss": "loss of a token",
    "honest_accuracy": "honest clients",
    "ari": "clustering",
    "ari_least": "least clustering",
    "perfect_rounds": "perfect rounds",
    "effectiveness": "matching effectiveness",
    "final_sample_accuracy": "sample accuracy",
    "average_incremental_accuracy": "average incremental accuracy",
}
"""The columns of a table of text, by the keys of rows."""
ALWAYS = (
    *("average_accuracy", "forgetting", "transfer_gain"),
    *("bytes_up", "bytes_down", "nominal_bytes_up", "model_bytes"),
)
"""The columns that `NOTE` explains; another is there where a run has a value."""

PLACES = {
    "before_aggregation": ("before_aggregation", "average_accuracy"),
    **{
        key: ("concepts", key)
        for key in ("ari", "ari_least", "perfect_rounds", "effectiveness")
    },
}
"""The places in a summary of values that have no key of their own there."""

COSTS = (
    *("bytes_up", "bytes_down", "nominal_bytes_up", "nominal_bytes_down"),
    *("model_bytes", "seconds", "peak_memory", "multiply_adds"),
)
"""Keys of a row that have the mean alone."""


class TextTable(NamedTuple):
    """A table as text: heads, cells, and a note that explains the columns."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str


def table(summaries: Sequence[Summary]) -> str:
    """Write `rows` as a Markdown table, with a note below that explains it."""
    head, cells, note = text_table(summaries)
    return f"{markdown(head, cells)}\n\n{note}\n"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    first = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*first, *(f"| {' | '.join(line)} |" for line in lines)])


def text_table(summaries: Sequence[Summary]) -> TextTable:
    """Write `rows` with those columns for which a run has a value."""
    by_title = rows(summaries)
    special = {
        key
        for key in COLUMNS
        if key not in ALWAYS and any(row[key] for row in by_title)
    }
    keys = [key for key in COLUMNS if key in ALWAYS or key in special]
    lines = [
        [row["label"], ", ".join(map(str, row["seeds"]))]
        + [_cell(key, row[key]) for key in keys]
        for row in by_title
    ]
    notes = (f"{m.name}: {m.meaning}." for m in MEASURES if m.key in special)
    head = ["method", "seeds", *(COLUMNS[key] for key in keys)]
    return TextTable(head, lines, " ".join([NOTE, *notes]))


def _cell(key: str, value: Any) -> str:  # noqa: ANN401 - a mean, or one with its deviation
    if key in COSTS:
        return f"{value / 1e6:.1f} MB"
    gain = key in ("forward_transfer", "transfer_gain")
    return format_mean_std(value, "+.3f" if gain else ".3f")


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Make a row for each title, in the order in which titles first occur."""
    by_title: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        by_title.setdefault(summary["label"], {})[summary["seed"]] = summary
    return [_row(title, by_title) for title in by_title]


def mean_and_std(values: Iterable[float | None]) -> MeanAndStd | None:
    """Compute mean and standard deviation (n - 1) of the known values, if any.

    The deviation of a single value is None, not 0.
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return {"mean": statistics.fmean(numbers), "deviation": deviation}


def format_mean_std(value: MeanAndStd | None, form: str = ".3f") -> str:
    """Write ``mean ± deviation``; nothing for None."""
    if value is None:
        return ""
    mean, deviation = f"{value['mean']:{form}}", value["deviation"]
    return mean if deviation is None else f"{mean} ± {deviation:.3f}"


def value(summary: Summary, key: str) -> float | None:
    """Look up the value of a row's key in a summary; None where it is not known."""
    content: Any = summary
    for name in PLACES.get(key, (key,)):
        content = (content or {}).get(name)
    return None if content is None else float(content)


def _row(title: str, by_title: Mapping[str, Mapping[int, Summary]]) -> dict[str, Any]:
    runs = by_title[title]
    row: dict[str, Any] = {"label": title, "seeds": sorted(runs)}
    for key in dict.fromkeys([*(measure.key for measure in MEASURES), *COSTS]):
        spread = mean_and_std(value(run, key) for run in runs.values())
        row[key] = spread["mean"] if spread and key in COSTS else spread
    of_samples = map(_final_sample_accuracy, runs.values())
    row["final_sample_accuracy"] = mean_and_std(of_samples)
    every = [run for of_title in by_title.values() for run in of_title.values()]
    transfers = (_forward_transfer(run, every) for run in runs.values())
    row["forward_transfer"] = mean_and_std(transfers)
    counterparts = by_title.get(next(iter(runs.values()))["counterpart"] or "", {})
    gains = [
        _gain(run, counterparts[seed])
        for seed, run in runs.items()
        if seed in counterparts
        and run.get("hidden") == counterparts[seed].get("hidden")
    ]
    row["transfer_gain"] = mean_and_std(gains)
    return row


def _forward_transfer(run: Summary, others: Sequence[Summary]) -> float | None:
    """Compare a run with that of single tasks of the same seed, data and network."""
    single = [
        other
        for other in others
        # Hidden concepts are learned at no known time.
        if other.get("single_task") and other.get("hidden") is None
    ]
    alike = [s for s in single if all(s.get(key) == run.get(key) for key in ALIKE)]
    if len(alike) != 1 or run in single:
        return None
    accuracies = (np.array(s["client_accuracy"], float) for s in (run, *alike))
    transfer = measures.forward_transfer(*accuracies)
    return None if np.isnan(transfer) else transfer


def _final_sample_accuracy(summary: Summary) -> float | None:
    """Take the last sample accuracy of a class-incremental run, if all are known."""
    seen: Sequence[float | None] = summary.get("sample_accuracy", [])
    incremental = summary.get("scenario") == "class-incremental"
    return seen[-1] if incremental and seen and None not in seen else None


def _gain(federated: Summary, local_only: Summary) -> float | None:
    accuracy, baseline = (s["average_accuracy"] for s in (federated, local_only))
    return None if accuracy is None or baseline is None else accuracy - baseline
