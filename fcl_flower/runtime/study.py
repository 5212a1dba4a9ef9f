"""Several runs on identical scenarios, with tables of them all."""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.algorithms.registry import DATASET, algorithm, local_only_counterpart
from fcl_flower.config.parsing import flatten, read_toml, validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.upgrade import is_flat
from fcl_flower.core.errors import (
    ConfigError,
    FclError,
    RoundError,
    refuse,
    unknown,
)
from fcl_flower.results.report import write_comparison
from fcl_flower.results.run_folder import resumable
from fcl_flower.results.tables import Summary, rows, table
from fcl_flower.runtime.simulation import Job, Outcome
from fcl_flower.setup.resolve import resolve


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
            variant.replace(seed=seed)
            for seed in self.seeds
            for variant in self.variants
        ]


def with_local_only(variants: Iterable[RunConfig]) -> tuple[RunConfig, ...]:
    """Return the variants and their local-only counterparts that are not among them."""
    both: list[RunConfig] = []
    for variant in variants:
        for config in (variant, local_only_counterpart(variant)):
            if config is not None and config not in both:
                both.append(config)
    return tuple(both)


def variants_of(
    names: Sequence[str],
    shared: RunConfig,
    params: Mapping[str, object],
    *,
    counterparts: bool,
) -> tuple[RunConfig, ...]:
    """Return the runs that a comparison of strategies consists of.

    All get the data set and the scenario of the first that has some of its own, unless
    ``shared`` names them.

    Args:
        names: of the strategies.
        shared: what all runs have in common.
        params: parameters by ``strategy.key``; each goes to those that know it.
        counterparts: add the local-only counterparts.

    Raises:
        ConfigError: a strategy is unknown, or none knows a parameter.
    """
    methods = [algorithm(name) for name in names]
    keys = {
        method.name: {f"strategy.{key}" for key in method.params_type.model_fields}
        for method in methods
    }
    for key in params:
        if not any(key in known for known in keys.values()):
            every = sorted(set().union(*keys.values()))
            raise unknown(key, key, every)
    common = {}
    for key, usual in (("data.datasets", DATASET), ("scenario.name", "")):
        own = (str(method.defaults.get(key, usual)) for method in methods)
        chosen = next((value for value in own if value != usual), usual)
        if not shared.flat()[key]:
            common[key] = chosen
    variants = [
        shared.replace(
            **{
                **common,
                "strategy.name": method.name,
                **{k: v for k, v in params.items() if k in keys[method.name]},
            }
        )
        for method in methods
    ]
    return with_local_only(variants) if counterparts else tuple(variants)


FORMAT = (
    "a study's file: seeds = [1, 2], [run] with what all runs share, such as "
    "scenario.clients = 4, and a [[variant]] for each row, such as "
    'strategy.name = "fedavg" (docs/studies.md)'
)


def read_study(path: Path) -> Study:
    """Return the study that a TOML file describes.

    ``seeds`` is a list, ``[run]`` holds what all runs share, and each
    ``[[variant]]`` what its row changes, both by section. Federated variants get a
    local-only counterpart unless ``local_only_counterparts = false``.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    found = read_toml(path, "study")
    if is_flat(found):
        raise ConfigError(
            f"study: got {str(path)!r} of an earlier version, expected sections; "
            f"fcl config upgrade {path} prints it so"
        )
    try:
        checked = validate_params(_StudyFile, found, f"study {path.name}: ")
        for table in (checked.run, *checked.variant):
            _check_sections(table)
    except ConfigError as error:
        raise ConfigError(f"{error}; this is {FORMAT}") from error
    variants = tuple(
        RunConfig.of({**flatten(checked.run), **flatten(variant)})
        for variant in checked.variant
    )
    for variant in variants:
        if "," in variant.title:
            expected = "one without a comma, which separates the rows of --only"
            raise refuse("run.title", variant.title, expected)
    if checked.local_only_counterparts:
        variants = with_local_only(variants)
    return Study(variants, tuple(checked.seeds))


def _check_sections(table: Mapping[str, object]) -> None:
    """Refuse keys of a study's table that are in no section."""
    for key, value in table.items():
        section, dot, _ = key.partition(".")
        if section not in RunConfig.model_fields:
            raise unknown(key, section, RunConfig.model_fields)
        if not (dot or isinstance(value, Mapping)):
            raise refuse(key, value, "a table, as this is a section")


class _StudyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1)
    run: dict[str, Any] = Field({})
    variant: list[dict[str, Any]] = Field([{}], min_length=1)
    local_only_counterparts: bool = True


def run_study(
    study: Study,
    folder: Path,
    run_all: Callable[[Sequence[Job]], Generator[tuple[Job, Outcome]]],
    wanted: Callable[[RunConfig], bool] = lambda config: True,
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

    Raises:
        ConfigError: a configuration is refused, or a finished run in ``folder`` was
            made with other settings.
        RoundError: some runs failed; all others are finished.
    """
    _check_titles(study.variants)
    runs = [resolve(config) for config in study.runs()]
    # After the names have been looked up, since it loads torch.
    from fcl_flower.setup.factory import validate

    for one in runs:  # a scenario may fail for one seed alone
        validate(one)
    folders = {run_folder(folder, one.config): one for one in runs}
    kept = {place: _finished(place, one.config) for place, one in folders.items()}
    chosen = [place for place, one in folders.items() if wanted(one.config)]
    jobs = []
    for number, place in enumerate(chosen, 1):
        if kept[place] is None:
            one = folders[place]
            begun = one.config.replace(resume=_begun(place, one.config))
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


def _check_titles(variants: Sequence[RunConfig]) -> None:
    """Refuse two rows of one title, of which one folder could hold but one."""
    titles = [variant.title for variant in variants]
    for title in titles:
        if titles.count(title) > 1:
            raise refuse("run.title", title, "another title for each row of a study")


def run_folder(folder: Path, config: RunConfig) -> Path:
    """Return the folder of one run below that of its study."""
    return folder / f"{config.title.replace(' ', '-')}-seed{config.run.seed}"


def _write_tables(folder: Path, kept: Mapping[Path, Summary | None]) -> list[Summary]:
    """Write the tables and the page of all finished runs; return their summaries."""
    summaries = [summary for summary in kept.values() if summary is not None]
    if summaries:
        write_comparison(folder, [p for p, found in kept.items() if found is not None])
        (folder / "table.md").write_text(table(summaries))
        (folder / "table.json").write_text(json.dumps(rows(summaries), indent=1) + "\n")
    return summaries


def _finished(place: Path, config: RunConfig) -> Summary | None:
    if not (place / "summary.json").exists():
        return None
    _check_same(place, config)
    found: Summary = json.loads((place / "summary.json").read_text())
    return found


def _begun(place: Path, config: RunConfig) -> bool:
    """Return whether a run was interrupted after its first round, and can go on."""
    if not resumable(place):
        return False
    _check_same(place, config)
    return True


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
