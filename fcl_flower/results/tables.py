"""Tables over several runs: mean and deviation over seeds, and the transfer gain."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fcl_flower.results import metrics

Summary = Mapping[str, Any]


HEAD = [
    *("method", "seeds", "accuracy", "forgetting", "transfer gain", "up", "down"),
    *("up, papers' count", "model"),
]


CONCEPTS = {
    "ari": "ARI",
    "ari_least": "least ARI",
    "perfect_rounds": "perfect rounds",
    "effectiveness": "matching effectiveness",
}
"""Keys of a summary's ``concepts``, and what a table calls them."""


SEEN = {
    "sample_accuracy": "accuracy over samples",
    "mean_sample_accuracy": "mean over tasks",
}
"""Keys of a row of class-incremental runs, and what a table calls them."""


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return one row a label: mean and deviation over seeds, and the transfer gain."""
    by_label: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        by_label.setdefault(summary["label"], {})[summary["seed"]] = summary
    found = []
    for label, runs in by_label.items():
        row: dict[str, Any] = {"label": label, "seeds": sorted(runs)}
        for key in ("average_accuracy", "forgetting", "backward_transfer"):
            row[key] = mean_and_std([run[key] for run in runs.values()])
        for key in (
            "bytes_up",
            "bytes_down",
            "nominal_bytes_up",
            "nominal_bytes_down",
            "model_bytes",
            "seconds",
        ):
            row[key] = statistics.fmean(run[key] for run in runs.values())
        for key in CONCEPTS:
            row[key] = mean_and_std(
                [run.get("concepts", {}).get(key) for run in runs.values()]
            )
        found_of_seen = [_seen(run) for run in runs.values()]
        for key in SEEN:
            row[key] = mean_and_std([of_run[key] for of_run in found_of_seen])
        counterparts = by_label.get(next(iter(runs.values()))["counterpart"] or "", {})
        pairs = [
            (run, counterparts[seed])
            for seed, run in sorted(runs.items())
            if seed in counterparts
            and run.get("hidden") == counterparts[seed].get("hidden")
        ]
        if pairs:
            row["transfer_gain"] = mean_and_std([_gain(a, b) for a, b in pairs])
            row["transfer_gain_per_task"] = _gain_per_task(pairs)
        found.append(row)
    return found


def table(summaries: Sequence[Summary]) -> str:
    """Return `rows` as a Markdown table."""
    found = rows(summaries)
    clustered = any(row[key] for row in found for key in CONCEPTS)
    incremental = any(row[key] for row in found for key in SEEN)
    more = (CONCEPTS if clustered else {}) | (SEEN if incremental else {})
    head = [*HEAD, *more.values()]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for row in found:
        gain = row.get("transfer_gain")
        cells = [
            row["label"],
            ", ".join(map(str, row["seeds"])),
            format_mean_std(row["average_accuracy"]),
            format_mean_std(row["forgetting"]),
            format_mean_std(gain, "+.3f"),
            *(
                f"{row[key] / 1e6:.1f} MB"
                for key in ("bytes_up", "bytes_down", "nominal_bytes_up", "model_bytes")
            ),
            *(format_mean_std(row[key]) for key in more),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines.append(
        "Last round, mean over clients and tasks, ± standard deviation over the seeds. "
        "Bytes are those of the whole run and all clients; the model is what one "
        "client keeps at the end. The transfer gain is the accuracy minus that of the "
        "isolated run with the same seed."
    )
    if clustered:
        lines[-1] += (
            " Hidden concepts: adjusted Rand index of the server's clusters against "
            "the concepts, mean and least over the rounds; share of the rounds in "
            "which it is 1; share of the updates that went into the concept model "
            "which their client had started from."
        )
    if incremental:
        lines[-1] += (
            " Class-incremental: accuracy over the test samples of all classes so far; "
            "after the last task, and mean over the tasks learned."
        )
    return "\n".join(lines) + "\n"


def _seen(summary: Summary) -> dict[str, float | None]:
    """Return the accuracy over all classes seen: the last, and the mean over tasks."""
    seen = summary.get("sample_accuracy", [])
    if summary.get("scenario") != "class-incremental" or None in seen or not seen:
        return dict.fromkeys(SEEN)
    return dict(zip(SEEN, (seen[-1], statistics.fmean(seen)), strict=True))


def _gain(federated: Summary, local_only: Summary) -> float | None:
    with_others, alone = (s["average_accuracy"] for s in (federated, local_only))
    return None if with_others is None or alone is None else with_others - alone


def _gain_per_task(pairs: Sequence[tuple[Summary, Summary]]) -> list[float | None]:
    gains = [
        metrics.transfer_gain(
            np.array(a["client_accuracy"], float), np.array(b["client_accuracy"], float)
        ).per_task
        for a, b in pairs
    ]
    mean = metrics.mean_measured(np.array(gains), axis=0)
    return [None if np.isnan(value) else float(value) for value in mean]


def mean_and_std(values: Iterable[float | None]) -> dict[str, float | None] | None:
    """Return mean and deviation of what was measured; None where nothing was.

    A single value has no deviation: that is None, not 0.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "deviation": deviation}


def format_mean_std(value: Mapping[str, float | None] | None, form: str = ".3f") -> str:
    """Return what `mean_and_std` found as a table shows it; empty where nothing was."""
    if value is None:
        return ""
    mean, deviation = f"{value['mean']:{form}}", value["deviation"]
    return mean if deviation is None else f"{mean} ± {deviation:.3f}"
