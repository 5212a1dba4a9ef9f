"""The runs of a study, with tables of them all."""

import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fcl_flower.config.parsing import toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError, FclError, RoundError, config_error
from fcl_flower.data.datasets import HELD_OUT
from fcl_flower.results.run_folder import check_local_data, resumable
from fcl_flower.results.tables import Summary, rows, table
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.local_runs import Job, RunResult
from fcl_flower.simulation.study import Study, Values, with_local_only

RunAll = Callable[[Sequence[Job]], Generator[tuple[Job, RunResult]]]
"""Does runs, and yields each with its result when it is over."""


def run_study(
    study: Study,
    folder: Path,
    run_all: RunAll,
    wanted: Callable[[RunConfig], bool] = lambda config: True,
    local_data: Sequence[Path] = (),
) -> list[Summary]:
    """Do the missing runs; return all summaries in the order of the runs.

    A run with a summary of the same configuration in its folder is kept, and an
    interrupted run goes on, so that a study can be stopped at any time. After each run
    the tables and the comparison page have all finished runs. Missing runs are done
    only if they are ``wanted``.

    Raises:
        ConfigError: a configuration is refused, or a finished run in ``folder`` has
            other settings or other local data.
        RoundError: some runs failed; all others are finished.
    """
    folders = {run_folder(folder, run.config): run for run in checked(study)}
    kept: dict[Path, Summary | None] = {}
    for place, run in folders.items():
        summary = place / "summary.json"
        if summary.exists() or resumable(place):
            _check_same(place, run.config)
            check_local_data(place, local_data)
        kept[place] = json.loads(summary.read_text()) if summary.exists() else None
    chosen = [place for place, run in folders.items() if wanted(run.config)]
    jobs = []
    for number, place in enumerate(chosen, 1):
        if kept[place] is None:
            begun = folders[place].with_settings(resume=resumable(place))
            jobs.append(Job(begun, place, number, len(chosen)))
    failed = {}
    with closing(run_all(jobs)) as done:
        for job, result in done:
            if isinstance(result, FclError):
                failed[job.name] = result
            else:
                kept[job.folder] = result
                _write_tables(folder, kept)
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise RoundError(f"{len(failed)} of {len(jobs)} runs failed: {reasons}")
    return _write_tables(folder, kept)


def checked(study: Study) -> list[RunSpec]:
    """Resolve and validate all runs of a study.

    Raises:
        ConfigError: a configuration is refused, or two rows have the same folder.
    """
    folders = [run_folder(Path(), variant) for variant in study.variants]
    for variant, folder in zip(study.variants, folders, strict=True):
        if folders.count(folder) > 1:
            expected = "another title for each row of a study"
            raise config_error("run.title", variant.title, expected)
    runs = [resolve(config) for config in study.runs()]
    # After the names have been looked up, since it loads torch.
    from fcl_flower.setup.build import built, validate

    validated = list[RunConfig]()
    for run in runs:
        of_all_seeds = run.config.replace(seed=0)
        if of_all_seeds in validated:
            _ = built(run).scenario  # which may fail for one seed alone
        else:
            validate(run)
            validated.append(of_all_seeds)
    return runs


def run_folder(folder: Path, config: RunConfig) -> Path:
    """Name the folder of one run, directly below that of its study."""
    title = config.title.replace(" ", "-").replace("/", "_")
    return folder / f"{title}-seed{config.run.seed}"


def _write_tables(folder: Path, kept: Mapping[Path, Summary | None]) -> list[Summary]:
    summaries = [summary for summary in kept.values() if summary is not None]
    if summaries:
        from fcl_flower.results.report.comparison import write_comparison

        write_comparison(folder, [p for p, one in kept.items() if one is not None])
        (folder / "table.md").write_text(table(summaries))
        (folder / "table.json").write_text(json.dumps(rows(summaries), indent=1) + "\n")
    return summaries


def _check_same(place: Path, config: RunConfig) -> None:
    finished = RunConfig.read(place / "config.toml", "output")
    # Paths and ports may differ by machine.
    free = {
        **{"output": "", "client_state": "context", "data_root": ""},
        **{"resume": False, "metrics_port": 0},
    }
    if config.federation.patience:  # a task may have ended early
        free["rounds_by_task"] = ""
    if config.data.normalise == "data" and finished.data.pixel_statistics:
        free["normalise"] = "data"
    if finished.replace(**free) != config.replace(**free):
        raise ConfigError(
            f"output: got {str(place)!r} with a run of other settings, expected an "
            "empty folder or one of the same study"
        )


# ---- the choice among candidates

FOLDER = "choice"
"""The folder of the candidates' runs, below that of the study."""


class _Candidate(NamedTuple):
    """A row's possible values, and a run with them on held-out samples, at seed 0."""

    row: str
    values: Values
    config: RunConfig


def settle(
    study: Study, folder: Path, run_all: RunAll, wanted: Collection[str]
) -> Study:
    """Choose the best candidates of each row of a study.

    Every candidate runs once with each of the choice's seeds, on training samples
    alone. The clients learn four fifths of each class and are tested on the rest
    (`held_out`). So no test sample and no seed of the table has a part in the choice.
    The best candidate has the highest mean of the average accuracy after the last
    round; of equal ones it is the first in the file. Runs are kept, so that a choice
    goes on where it was stopped. ``chosen.json`` and ``chosen.md`` in ``folder`` list
    all candidates.

    Candidates of rows whose titles are not ``wanted`` do not run. Rows with a missing
    candidate are left out.

    Raises:
        ConfigError: a configuration is refused, or has no accuracies, or a finished run
            in ``folder`` has other settings.
        RoundError: some runs failed, or ended without an accuracy.
    """
    if not study.candidates:
        return study
    candidates = _candidates(study)
    # Before the candidates run, which may take days.
    checked(study)
    for candidate in candidates:
        if not candidate.config.privacy.scores:
            expected = "true, as candidates are compared by their accuracy"
            raise config_error("privacy.scores", False, expected)
    needed = set()
    for row in study.rows:
        of_row = with_local_only([row]) if study.counterparts else [row]
        if any(variant.title in wanted for variant in of_row):
            needed |= {c.config.title for c in candidates if c.row == row.title}
    summaries = run_study(
        candidate_study(study),
        folder / FOLDER,
        run_all,
        lambda config: config.title in needed,
    )
    chosen = _choose(study, candidates, summaries, folder)
    settled = tuple(
        row.replace(**chosen.get(row.title, {}))
        for row in study.rows
        if row.title not in study.candidates or row.title in chosen
    )
    return replace(study, rows=settled, candidates={})


def candidate_study(study: Study) -> Study:
    """Make the study of all candidates of another."""
    every = tuple(candidate.config for candidate in _candidates(study))
    return Study(every, study.choice_seeds)


def _candidates(study: Study) -> list[_Candidate]:
    candidates = []
    for row in study.rows:
        for values in study.candidates.get(row.title, ()):
            # The table's data set decides all open settings.
            config = resolve(row.replace(**values)).config
            if not config.data.names:
                expected = "data sets, of which training samples can be held out"
                raise config_error("data.datasets", config.data.datasets, expected)
            listed = " ".join(f"{k.partition('.')[2]}={v}" for k, v in values.items())
            title = f"{row.run.title or row.strategy.name} {listed}"
            held_out = ",".join(f"{HELD_OUT}{name}" for name in config.data.names)
            changes = {"run.title": title, "data.datasets": held_out}
            changed = config.replace(**changes)
            candidates.append(_Candidate(row.title, values, changed))
    return candidates


def _choose(
    study: Study,
    candidates: Sequence[_Candidate],
    summaries: Sequence[Summary],
    folder: Path,
) -> dict[str, Values]:
    """Find the best values of each row whose candidates all ran; write them down.

    Without such a row no file is written.
    """
    accuracies: dict[str, list[float]] = {}
    for summary in summaries:
        label, accuracy = summary["label"], summary["average_accuracy"]
        if accuracy is None:
            raise RoundError(
                f"{label} seed {summary['seed']} ended without an accuracy, so that "
                "nothing can be chosen"
            )
        accuracies.setdefault(label, []).append(accuracy)
    chosen: dict[str, Values] = {}
    seeds = ", ".join(map(str, study.choice_seeds))
    records = []
    lines = [
        "Mean accuracy after the last round on training samples that were held out, "
        f"seeds {seeds}.",
        "",
        "| method | values | accuracy | |",
        "| --- | --- | --- | --- |",
    ]
    for row in study.candidates:
        own = [candidate for candidate in candidates if candidate.row == row]
        scores = [accuracies.get(candidate.config.title, []) for candidate in own]
        if any(len(score) < len(study.choice_seeds) for score in scores):
            continue
        best = max(range(len(own)), key=lambda at: fmean(scores[at]))
        chosen[row] = own[best].values
        for at, (candidate, score) in enumerate(zip(own, scores, strict=True)):
            record = {"row": row, "values": dict(candidate.values), "accuracy": score}
            records.append({**record, "chosen": at == best})
            values = ", ".join(
                f"`{key} = {toml(value)}`" for key, value in candidate.values.items()
            )
            mark = "chosen" if at == best else ""
            lines.append(f"| {row} | {values} | {fmean(score):.3f} | {mark} |")
    if chosen:
        (folder / "chosen.md").write_text("\n".join(lines) + "\n")
        (folder / "chosen.json").write_text(json.dumps(records, indent=1) + "\n")
    return chosen
