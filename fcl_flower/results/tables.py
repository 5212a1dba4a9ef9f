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
    """A measure of a run, for tables, pages and sheets.

    Attributes:
        key: key in a row, and in a summary unless ``place`` names another one.
        name: name on pages.
        meaning: explanation, which may contain ``{noun}``: task or concept.
        form: the way to write the value; see `SPREAD_FORMS` and `COST_FORMS`.
        column: head of its column in a table of text; empty where it has none.
        always: whether the column, which `NOTE` explains, is there without a value.
        place: keys that lead to the value in a summary.
    """

    key: str
    name: str
    meaning: str
    form: str = "fraction"
    column: str = ""
    always: bool = False
    place: tuple[str, ...] = ()


SPREAD_FORMS = ("fraction", "gain")
"""The forms of measures whose standard deviation over seeds is of interest."""
COST_FORMS = ("bytes", "count", "duration")
"""The forms of measures of which a row has the mean alone."""

MEASURES = (
    Measure(
        "average_accuracy",
        "Average accuracy",
        "over all {noun}s at the last test, mean over clients",
        column="accuracy",
        always=True,
    ),
    Measure(
        "balanced_accuracy",
        "Balanced accuracy",
        "mean over a task's classes of recall, the fraction of right answers",
        column="balanced accuracy",
    ),
    Measure(
        "inferred_task_accuracy",
        "Task unknown",
        "accuracy where the most confident head answers (fcl predict --task auto)",
    ),
    Measure(
        "forgetting",
        "Catastrophic forgetting",
        "best earlier accuracy minus the final one; less is better",
        column="forgetting",
        always=True,
    ),
    Measure(
        "backward_transfer",
        "Backward transfer",
        "final accuracy minus that when learned; more is better",
        "gain",
    ),
    Measure("learning_accuracy", "Learning accuracy", "of tasks when learned"),
    Measure(
        "final_sample_accuracy",
        "Sample accuracy",
        "over the test samples of all classes, after the last task",
        column="sample accuracy",
    ),
    Measure(
        "average_incremental_accuracy",
        "Average incremental accuracy",
        "after each task, over all classes so far; mean over tasks",
        column="average incremental accuracy",
    ),
    Measure(
        "transfer_gain",
        "Transfer gain",
        "average accuracy minus that of the local-only counterpart with the same seed",
        "gain",
        column="transfer gain",
        always=True,
    ),
    Measure(
        "forward_transfer",
        "Forward transfer",
        "accuracy on a task just after it was learned, minus that of a fresh model "
        "that learned nothing else, with the same seed; over all tasks but the first",
        "gain",
        column="forward transfer",
    ),
    Measure(
        "macro_f1", "Macro F1", "mean over a task's classes of F1", column="macro F1"
    ),
    Measure(
        "token_loss",
        "Loss of a token",
        "nats for each token of the right answers at the last test; less is better",
        column="loss of a token",
    ),
    Measure(
        "honest_accuracy",
        "Honest clients",
        "accuracy without hostile clients",
        column="honest clients",
    ),
    Measure(
        "before_aggregation",
        "Before aggregation",
        "accuracy of what clients trained",
        column="before aggregation",
        place=("before_aggregation", "average_accuracy"),
    ),
    Measure(
        "ari",
        "Clustering",
        "adjusted Rand index of the server's clusters, mean over rounds",
        column="clustering",
        place=("concepts", "ari"),
    ),
    Measure(
        "ari_least",
        "Least clustering",
        "the smallest index of a round",
        column="least clustering",
        place=("concepts", "ari_least"),
    ),
    Measure(
        "perfect_rounds",
        "Perfect rounds",
        "fraction of the rounds whose clusters are just the hidden concepts",
        "share",
        column="perfect rounds",
        place=("concepts", "perfect_rounds"),
    ),
    Measure(
        "effectiveness",
        "Matching effectiveness",
        "fraction of updates that went into the concept model they started from",
        column="matching effectiveness",
        place=("concepts", "effectiveness"),
    ),
    Measure("bytes_up", "Sent up", "in messages of clients", "bytes", "up", True),
    Measure("bytes_down", "Sent down", "in messages to clients", "bytes", "down", True),
    Measure(
        "nominal_bytes_up",
        "Nominal, sent up",
        "the papers' count: 4 bytes for each non-zero parameter",
        "bytes",
        column="nominal up",
        always=True,
    ),
    Measure("nominal_bytes_down", "Nominal, sent down", "the papers' count", "bytes"),
    Measure(
        "model_bytes", "Model size", "what a client must keep", "bytes", "model", True
    ),
    Measure("peak_memory", "Peak memory", "of all processes of the server", "bytes"),
    Measure("multiply_adds", "Multiply-adds", "of clients' training", "count"),
    Measure("seconds", "Time", "from the first round on", "duration"),
    Measure("clock", "Simulated time", "at the end of the run", "number"),
)
"""All measures in the order of tiles and columns."""

COLUMNS = [measure for measure in MEASURES if measure.column]
"""The columns of a table of text."""
SPREAD = [measure.key for measure in MEASURES if measure.form in SPREAD_FORMS]
"""Keys of a row that have mean and standard deviation."""
COSTS = [measure.key for measure in MEASURES if measure.form in COST_FORMS]
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
    columns = [m for m in COLUMNS if m.always or any(row[m.key] for row in by_title)]
    lines = [
        [row["label"], ", ".join(map(str, row["seeds"]))]
        + [_cell(measure, row[measure.key]) for measure in columns]
        for row in by_title
    ]
    notes = (f"{m.name}: {m.meaning}." for m in columns if not m.always)
    head = ["method", "seeds", *(measure.column for measure in columns)]
    return TextTable(head, lines, " ".join([NOTE, *notes]))


def _cell(measure: Measure, value: Any) -> str:  # noqa: ANN401 - a mean, or with its deviation
    if measure.form in COST_FORMS:
        return f"{value / 1e6:.1f} MB"
    return format_mean_std(value, "+.3f" if measure.form == "gain" else ".3f")


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


def value(summary: Summary, measure: Measure) -> float | None:
    """Look up a measure in a summary; None where it is not known."""
    content: Any = summary
    for name in measure.place or (measure.key,):
        content = (content or {}).get(name)
    return None if content is None else float(content)


def _row(title: str, by_title: Mapping[str, Mapping[int, Summary]]) -> dict[str, Any]:
    runs = by_title[title]
    row: dict[str, Any] = {"label": title, "seeds": sorted(runs)}
    for measure in MEASURES:
        spread = mean_and_std(value(run, measure) for run in runs.values())
        alone = spread and measure.form in COST_FORMS
        row[measure.key] = spread["mean"] if spread and alone else spread
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
