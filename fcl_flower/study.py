"""Several runs on identical scenarios, side by side: tables with mean and spread."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fcl_flower import metrics
from fcl_flower.algorithms import isolated_twin
from fcl_flower.config import RunConfig, check_params, read_toml
from fcl_flower.errors import ConfigError
from fcl_flower.folders import resumable
from fcl_flower.report import write_comparison

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


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared.

    Attributes:
        variants: one configuration for each row of the table, at seed 0.
        seeds: every variant runs once with each of them; at least one.
    """

    variants: tuple[RunConfig, ...]
    seeds: tuple[int, ...]

    def runs(self) -> list[RunConfig]:
        """Return every run, seed by seed, so that early results are comparable."""
        return [
            variant.with_values(seed=seed)
            for seed in self.seeds
            for variant in self.variants
        ]


def with_isolated(variants: Iterable[RunConfig]) -> tuple[RunConfig, ...]:
    """Return the variants and the isolated twins that are not among them."""
    both: list[RunConfig] = []
    for variant in variants:
        for config in (variant, isolated_twin(variant)):
            if config is not None and config not in both:
                both.append(config)
    return tuple(both)


def read_study(path: Path) -> Study:
    """Return the study that a TOML file describes.

    ``seeds`` is a list, ``[run]`` holds what all runs share, and each
    ``[[variant]]`` what its row changes. Federated variants get an isolated twin
    unless ``isolated-twins = false``.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    found = read_toml(path, "study")
    checked = check_params(_StudyFile, found, f"study {path.name}")
    variants = tuple(
        RunConfig.of({**checked.run, **variant}) for variant in checked.variant
    )
    for variant in variants:
        if "," in variant.title:
            raise ConfigError(
                f"study {path.name}: label {variant.title!r}: expected one without a "
                "comma, which separates the rows of --only"
            )
    if checked.isolated_twins:
        variants = with_isolated(variants)
    return Study(variants, tuple(checked.seeds))


class _StudyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1)
    run: dict[str, Any] = Field({})
    variant: list[dict[str, Any]] = Field([{}], min_length=1)
    isolated_twins: bool = Field(True, alias="isolated-twins")


def run_study(
    study: Study,
    folder: Path,
    run: Callable[[RunConfig, Path], Summary],
    wanted: Callable[[RunConfig], bool] = lambda config: True,
) -> list[Summary]:
    """Run what is not there yet; return all summaries in the order of the runs.

    A run whose folder holds a summary of the same configuration is kept, and one that
    was stopped goes on, so that a study can be stopped at any time. Tables and
    comparison page are written after each run, of all that is finished.

    Args:
        study: what to run.
        folder: one folder a run goes below it, and the tables.
        run: runs one configuration into a folder and returns its summary.
        wanted: says which of the runs to do if they are not there yet.

    Raises:
        ConfigError: a finished run in ``folder`` was made with other settings.
    """
    runs = [(config, _place(folder, config)) for config in study.runs()]
    kept = {place: _finished(place, config) for config, place in runs}
    for config, place in runs:
        if kept[place] is None and wanted(config):
            kept[place] = run(config.with_values(resume=_begun(place, config)), place)
            _write_tables(folder, kept)
    return _write_tables(folder, kept)


def _place(folder: Path, config: RunConfig) -> Path:
    return folder / f"{config.title.replace(' ', '-')}-seed{config.seed}"


def _write_tables(folder: Path, kept: Mapping[Path, Summary | None]) -> list[Summary]:
    """Write the tables and the page of all finished runs; return their summaries."""
    summaries = [summary for summary in kept.values() if summary is not None]
    if summaries:
        write_comparison(folder, [p for p, found in kept.items() if found is not None])
        (folder / "table.md").write_text(table(summaries))
        (folder / "table.json").write_text(json.dumps(rows(summaries), indent=1) + "\n")
    return summaries


def rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return one row a label: mean and deviation over seeds, and the transfer gain."""
    by_label: dict[str, dict[int, Summary]] = {}
    for summary in summaries:
        by_label.setdefault(summary["label"], {})[summary["seed"]] = summary
    found = []
    for label, runs in by_label.items():
        row: dict[str, Any] = {"label": label, "seeds": sorted(runs)}
        for key in ("average_accuracy", "forgetting", "backward_transfer"):
            row[key] = spread([run[key] for run in runs.values()])
        for key in (
            "bytes_up",
            "bytes_down",
            "paper_bytes_up",
            "paper_bytes_down",
            "model_bytes",
            "seconds",
        ):
            row[key] = statistics.fmean(run[key] for run in runs.values())
        for key in CONCEPTS:
            row[key] = spread(
                [run.get("concepts", {}).get(key) for run in runs.values()]
            )
        found_of_seen = [_seen(run) for run in runs.values()]
        for key in SEEN:
            row[key] = spread([of_run[key] for of_run in found_of_seen])
        twins = by_label.get(next(iter(runs.values()))["twin"] or "", {})
        pairs = [
            (run, twins[seed])
            for seed, run in sorted(runs.items())
            if seed in twins and run.get("hidden") == twins[seed].get("hidden")
        ]
        if pairs:
            row["transfer_gain"] = spread([_gain(a, b) for a, b in pairs])
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
            plus_minus(row["average_accuracy"]),
            plus_minus(row["forgetting"]),
            plus_minus(gain, "+.3f"),
            *(
                f"{row[key] / 1e6:.1f} MB"
                for key in ("bytes_up", "bytes_down", "paper_bytes_up", "model_bytes")
            ),
            *(plus_minus(row[key]) for key in more),
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


def _gain(federated: Summary, isolated: Summary) -> float | None:
    with_others, alone = (s["average_accuracy"] for s in (federated, isolated))
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


def spread(values: Iterable[float | None]) -> dict[str, float | None] | None:
    """Return mean and deviation of what was measured; None where nothing was.

    A single value has no deviation: that is None, not 0.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "deviation": deviation}


def plus_minus(value: Mapping[str, float | None] | None, form: str = ".3f") -> str:
    """Return what `spread` found as a table shows it; empty where nothing was."""
    if value is None:
        return ""
    mean, deviation = f"{value['mean']:{form}}", value["deviation"]
    return mean if deviation is None else f"{mean} ± {deviation:.3f}"


def _finished(place: Path, config: RunConfig) -> Summary | None:
    if not (place / "summary.json").exists():
        return None
    _check_same(place, config)
    found: Summary = json.loads((place / "summary.json").read_text())
    return found


def _begun(place: Path, config: RunConfig) -> bool:
    """Return whether a run was stopped after its first round, and can go on."""
    if not resumable(place):
        return False
    _check_same(place, config)
    return True


def _check_same(place: Path, config: RunConfig) -> None:
    """Refuse a folder with a run of other settings."""
    made = RunConfig.of(read_toml(place / "config.toml", "output"))
    # Where things lie may differ by machine, and a record says what a default meant.
    free = {"output", "memory", "data_root"}
    left_to_us = {"dataset", "scenario", "model", "clients"}
    left_to_us |= {"batch_size", "learning_rate", "head", "rounds", "evaluate_every"}
    free |= {key for key in left_to_us if not getattr(config, key)}
    if made.model_dump(exclude=free) != config.model_dump(exclude=free):
        raise ConfigError(
            f"output: {str(place)!r} holds a run with other settings; expected an "
            f"empty folder or one of the same study"
        )
