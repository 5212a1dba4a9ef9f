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
    """Run what is not there yet; return all summaries in the order of the runs.

    A run whose folder holds a summary of the same configuration is kept, and one that
    was interrupted goes on, so that a study can be stopped at any time. Tables and
    comparison page are written after each run, of all that is finished. Of runs that
    are not there yet, those that are ``wanted`` are done.

    Raises:
        ConfigError: a configuration is refused, or a finished run in ``folder`` was
            made with other settings or of other local data.
        RoundError: some runs failed; all others are finished.
    """
    folders = {run_folder(folder, one.config): one for one in checked(study)}
    kept: dict[Path, Summary | None] = {}
    for place, one in folders.items():
        summary = place / "summary.json"
        if summary.exists() or resumable(place):
            _check_same(place, one.config)
            check_local_data(place, local_data)
        kept[place] = json.loads(summary.read_text()) if summary.exists() else None
    chosen = [place for place, one in folders.items() if wanted(one.config)]
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
        ConfigError: a configuration is refused, or two rows have one title, and so
            would have one folder.
    """
    folders = [run_folder(Path(), variant) for variant in study.variants]
    for variant, folder in zip(study.variants, folders, strict=True):
        if folders.count(folder) > 1:
            expected = "another title for each row of a study"
            raise config_error("run.title", variant.title, expected)
    runs = [resolve(config) for config in study.runs()]
    # After the names have been looked up, since it loads torch.
    from fcl_flower.setup.build import built, validate

    known = list[RunConfig]()
    for one in runs:
        of_all_seeds = one.config.replace(seed=0)
        if of_all_seeds in known:
            _ = built(one).scenario  # which may fail for one seed alone
        else:
            validate(one)
            known.append(of_all_seeds)
    return runs


def run_folder(folder: Path, config: RunConfig) -> Path:
    """Name the folder of one run, directly below that of its study."""
    title = config.title.replace(" ", "-").replace("/", "_")
    return folder / f"{title}-seed{config.run.seed}"


def _write_tables(folder: Path, kept: Mapping[Path, Summary | None]) -> list[Summary]:
    summaries = [summary for summary in kept.values() if summary is not None]
    if summaries:
        from fcl_flower.results.report.comparison import write_comparison

        write_comparison(folder, [p for p, found in kept.items() if found is not None])
        (folder / "table.md").write_text(table(summaries))
        (folder / "table.json").write_text(json.dumps(rows(summaries), indent=1) + "\n")
    return summaries


def _check_same(place: Path, config: RunConfig) -> None:
    made = RunConfig.read(place / "config.toml", "output")
    # Where things lie, and what else is open, may differ by machine.
    free = {
        **{"output": "", "client_state": "context", "data_root": ""},
        **{"resume": False, "metrics_port": 0},
    }
    if config.federation.patience:  # a task may have ended early
        free["rounds_by_task"] = ""
    if config.data.normalise == "data" and made.data.pixel_statistics:
        free["normalise"] = "data"
    if made.replace(**free) != config.replace(**free):
        raise ConfigError(
            f"output: got {str(place)!r} with a run of other settings, expected an "
            "empty folder or one of the same study"
        )


# ---- the choice among candidates

FOLDER = "choice"
"""The folder of the candidates' runs, below that of the study."""


class _Candidate(NamedTuple):
    """Values that a row may get, and a run with them on held-out samples, at seed 0."""

    row: str
    values: Values
    config: RunConfig


def settle(
    study: Study, folder: Path, run_all: RunAll, wanted: Collection[str]
) -> Study:
    """Choose the best candidates of each row of a study.

    Every candidate runs once with each of the choice's seeds, on training samples
    alone: the clients learn four fifths of each class and are tested on the rest
    (`held_out`), so that neither a test sample nor a seed of the table has a part in
    the choice. The best has the highest mean of the average accuracy after the last
    round; of equals the first in the file. Runs are kept, so that a choice goes on
    where it was stopped; ``chosen.json`` and ``chosen.md`` in ``folder`` tell of all.

    Candidates of rows whose titles are not ``wanted`` are not run, and rows whose
    candidates were not all run are left out.

    Raises:
        ConfigError: a configuration is refused, or asks for no accuracies, or a
            finished run in ``folder`` was made with other settings.
        RoundError: some runs failed, or had no accuracy at their end, so that nothing
            can be chosen.
    """
    if not study.candidates:
        return study
    candidates = _candidates(study)
    # Now, as nobody wants to hear of a wrong row when all candidates have run.
    checked(study)
    for found in candidates:
        if not found.config.privacy.scores:
            expected = "true, as candidates are compared by their accuracy"
            raise config_error("privacy.scores", False, expected)
    needed = set()
    for row in study.rows:
        of_row = with_local_only([row]) if study.counterparts else [row]
        if any(one.title in wanted for one in of_row):
            needed |= {one.config.title for one in candidates if one.row == row.title}
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
    every = tuple(found.config for found in _candidates(study))
    return Study(every, study.choice_seeds)


def _candidates(study: Study) -> list[_Candidate]:
    found = []
    for row in study.rows:
        for values in study.candidates.get(row.title, ()):
            # All that is left open is decided by the set that the table has.
            config = resolve(row.replace(**values)).config
            if not config.data.names:
                expected = "data sets, of which training samples can be held out"
                raise config_error("data.datasets", config.data.datasets, expected)
            said = " ".join(f"{key.partition('.')[2]}={values[key]}" for key in values)
            title = f"{row.run.title or row.strategy.name} {said}"
            held_out = ",".join(f"{HELD_OUT}{name}" for name in config.data.names)
            changes = {"run.title": title, "data.datasets": held_out}
            found.append(_Candidate(row.title, values, config.replace(**changes)))
    return found


def _choose(
    study: Study,
    candidates: Sequence[_Candidate],
    summaries: Sequence[Summary],
    folder: Path,
) -> dict[str, Values]:
    """Find the best values of each row whose candidates all ran; write them down.

    Where there is no such row nothing is written.
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
    told = []
    lines = [
        "Mean accuracy after the last round on training samples that were held out, "
        f"seeds {seeds}.",
        "",
        "| method | values | accuracy | |",
        "| --- | --- | --- | --- |",
    ]
    for row in study.candidates:
        own = [one for one in candidates if one.row == row]
        scores = [accuracies.get(one.config.title, []) for one in own]
        if any(len(score) < len(study.choice_seeds) for score in scores):
            continue
        best = max(range(len(own)), key=lambda at: fmean(scores[at]))
        chosen[row] = own[best].values
        for at, (one, score) in enumerate(zip(own, scores, strict=True)):
            said = {"row": row, "values": dict(one.values), "accuracy": score}
            told.append({**said, "chosen": at == best})
            values = ", ".join(f"`{k} = {toml(v)}`" for k, v in one.values.items())
            mark = "chosen" if at == best else ""
            lines.append(f"| {row} | {values} | {fmean(score):.3f} | {mark} |")
    if chosen:
        (folder / "chosen.md").write_text("\n".join(lines) + "\n")
        (folder / "chosen.json").write_text(json.dumps(told, indent=1) + "\n")
    return chosen
