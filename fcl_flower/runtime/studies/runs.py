"""The runs of a study, with tables of them all."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fcl_flower.config.parsing import read_toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, FclError, RoundError, refuse
from fcl_flower.results.report import write_comparison
from fcl_flower.results.run_folder import check_local_data, resumable
from fcl_flower.results.tables import Summary, rows, table
from fcl_flower.runtime.simulation import Job, Outcome
from fcl_flower.runtime.studies.plan import Study
from fcl_flower.setup.resolve import resolve
from fcl_flower.setup.resolved_run import ResolvedRun

RunAll = Callable[[Sequence[Job]], Generator[tuple[Job, Outcome]]]
"""Does runs, and yields each with its outcome when it is over."""


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
    comparison page are written after each run, of all that is finished.

    Args:
        study: what to run.
        folder: one folder a run goes below it, and the tables.
        run_all: does runs and yields each with its outcome when it is over.
        wanted: says which of the runs to do if they are not there yet.
        local_data: with local data, the folder of each client.

    Raises:
        ConfigError: a configuration is refused, or a finished run in ``folder`` was
            made with other settings or of other local data.
        RoundError: some runs failed; all others are finished.
    """
    runs = checked(study)
    folders = {run_folder(folder, one.config): one for one in runs}
    for place, one in folders.items():
        if (place / "summary.json").exists() or resumable(place):
            _check_same(place, one.config)
            check_local_data(place, one.config, local_data)
    kept = {place: _finished(place) for place in folders}
    chosen = [place for place, one in folders.items() if wanted(one.config)]
    jobs = []
    for number, place in enumerate(chosen, 1):
        if kept[place] is None:
            one = folders[place]
            begun = one.config.replace(resume=resumable(place))
            jobs.append(Job(replace(one, config=begun), place, number, len(chosen)))
    failed = {}
    with closing(run_all(jobs)) as done:
        for job, outcome in done:
            if isinstance(outcome, FclError):
                failed[job.name] = outcome
            else:
                kept[job.folder] = outcome
                _write_tables(folder, kept)
    if failed:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise RoundError(f"{len(failed)} of {len(jobs)} runs failed: {reasons}")
    return _write_tables(folder, kept)


def checked(study: Study) -> list[ResolvedRun]:
    """Return all runs of a study, of which each can be started.

    Raises:
        ConfigError: a configuration is refused, or two rows have one title.
    """
    _check_titles(study.variants)
    runs = [resolve(config) for config in study.runs()]
    # After the names have been looked up, since it loads torch.
    from fcl_flower.setup.factory import validate

    for one in runs:  # a scenario may fail for one seed alone
        validate(one)
    return runs


def _check_titles(variants: Sequence[RunConfig]) -> None:
    """Refuse two rows of one title, of which one folder could hold but one."""
    folders = [run_folder(Path(), variant) for variant in variants]
    for variant, folder in zip(variants, folders, strict=True):
        if folders.count(folder) > 1:
            expected = "another title for each row of a study"
            raise refuse("run.title", variant.title, expected)


def run_folder(folder: Path, config: RunConfig) -> Path:
    """Return the folder of one run, directly below that of its study."""
    title = config.title.replace(" ", "-").replace("/", "_")
    return folder / f"{title}-seed{config.run.seed}"


def _write_tables(folder: Path, kept: Mapping[Path, Summary | None]) -> list[Summary]:
    """Write the tables and the page of all finished runs; return their summaries."""
    summaries = [summary for summary in kept.values() if summary is not None]
    if summaries:
        write_comparison(folder, [p for p, found in kept.items() if found is not None])
        (folder / "table.md").write_text(table(summaries))
        (folder / "table.json").write_text(json.dumps(rows(summaries), indent=1) + "\n")
    return summaries


def _finished(place: Path) -> Summary | None:
    if not (place / "summary.json").exists():
        return None
    found: Summary = json.loads((place / "summary.json").read_text())
    return found


def _check_same(place: Path, config: RunConfig) -> None:
    """Refuse a folder with a run of other settings."""
    made = RunConfig.of(read_toml(place / "config.toml", "output"))
    # Where things lie, and what else is open, may differ by machine.
    free = {
        **{"output": "", "client_state": "context", "data_root": ""},
        **{"resume": False, "metrics_port": 0},
    }
    if made.replace(**free) != config.replace(**free):
        raise ConfigError(
            f"output: got {str(place)!r} with a run of other settings, expected an "
            "empty folder or one of the same study"
        )
