"""Several runs on identical scenarios, side by side: tables with mean and spread."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.algorithms.registry import local_only_counterpart
from fcl_flower.config.parsing import check_params, read_toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_comparison
from fcl_flower.results.run_folder import resumable
from fcl_flower.results.tables import Summary, rows, table


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


def with_local_only(variants: Iterable[RunConfig]) -> tuple[RunConfig, ...]:
    """Return the variants and the isolated twins that are not among them."""
    both: list[RunConfig] = []
    for variant in variants:
        for config in (variant, local_only_counterpart(variant)):
            if config is not None and config not in both:
                both.append(config)
    return tuple(both)


def read_study(path: Path) -> Study:
    """Return the study that a TOML file describes.

    ``seeds`` is a list, ``[run]`` holds what all runs share, and each
    ``[[variant]]`` what its row changes. Federated variants get an isolated twin
    unless ``local-only-counterparts = false``.

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
    if checked.local_only_counterparts:
        variants = with_local_only(variants)
    return Study(variants, tuple(checked.seeds))


class _StudyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1)
    run: dict[str, Any] = Field({})
    variant: list[dict[str, Any]] = Field([{}], min_length=1)
    local_only_counterparts: bool = Field(True, alias="local-only-counterparts")


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
