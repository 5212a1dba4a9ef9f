"""A study's TOML file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.algorithms.registry import DATASET, algorithm, local_only_counterpart
from fcl_flower.config.parsing import Scalar, flatten, read_toml, validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, config_error, unknown_name

Variants = tuple[RunConfig, ...]
"""One configuration for each row of a table, at seed 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a study's file.

    Attributes:
        config: what is run, with the first candidate's values.
        candidates: settings by ``section.key``, of which the best are chosen before
            the table is made; none where nothing is open.
    """

    config: RunConfig
    candidates: tuple[Mapping[str, Scalar], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What a study leaves open until its candidates were compared.

    Attributes:
        rows: those of the file, of which some have candidates.
        seeds: every candidate runs once with each of them; none of them is the table's.
        counterparts: whether local-only counterparts are added to the table.
    """

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    counterparts: bool

    def settled(self, chosen: Mapping[str, Mapping[str, Scalar]]) -> Variants:
        """Fill in the chosen values; list the rows of the table.

        Args:
            chosen: settings by the title of a row with candidates; one that is missing
                has no row yet.
        """
        rows = tuple(
            row.config.replace(**chosen.get(row.config.title, {}))
            for row in self.rows
            if not row.candidates or row.config.title in chosen
        )
        return with_local_only(rows) if self.counterparts else rows

    def of(self, row: Row) -> Variants:
        """List what the table has of a row: it, and perhaps its counterpart."""
        return with_local_only([row.config]) if self.counterparts else (row.config,)


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared.

    Attributes:
        variants: one configuration for each row of the table, at seed 0.
        seeds: every variant runs once with each of them; at least one.
        choice: what is settled before the table is made; None where nothing is open.
    """

    variants: Variants
    seeds: tuple[int, ...]
    choice: Choice | None = None

    def runs(self) -> list[RunConfig]:
        """List every run, seed by seed, so that early results are comparable."""
        return [
            variant.replace(seed=seed)
            for seed in self.seeds
            for variant in self.variants
        ]

    def mapped(self, change: Callable[[RunConfig], RunConfig]) -> Self:
        """Change the settings of all rows."""
        variants = tuple(map(change, self.variants))
        choice = self.choice
        if choice is not None:
            rows = (replace(row, config=change(row.config)) for row in choice.rows)
            choice = replace(choice, rows=tuple(rows))
        return replace(self, variants=variants, choice=choice)


def with_local_only(variants: Iterable[RunConfig]) -> Variants:
    """Add the local-only counterparts that are not among the variants."""
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
) -> Variants:
    """List the variants that a comparison of strategies consists of.

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
            raise unknown_name(key, key, every)
    common = {}
    usually = {"data.datasets": DATASET, "scenario.name": ""}
    if shared.scenario.name == "local-data":  # whose samples are the clients'
        usually = {}
    for key, usual in usually.items():
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


CANDIDATES = "candidates"
"""The table of a variant that lists values to choose from."""

FORMAT = (
    "a study's file: seeds = [1, 2], [run] with what all runs share, such as "
    "scenario.clients = 4, and a [[variant]] for each row, such as "
    'strategy.name = "fedavg" (docs/studies.md)'
)


def read_study(path: Path) -> Study:
    """Read a study from its TOML file.

    ``seeds`` is a list, ``[run]`` holds what all runs share, and each
    ``[[variant]]`` what its row changes, both by section. Federated variants get a
    local-only counterpart unless ``local_only_counterparts = false``. A variant's
    table ``candidates`` lists values of settings; all combinations are compared with
    ``choice_seeds`` before the table is made.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    found = read_toml(path, "study")
    try:
        checked = validate_params(_StudyFile, found, f"study {path.name}: ")
        _check_sections(checked.run)
        for variant in checked.variant:
            _check_sections({k: v for k, v in variant.items() if k != CANDIDATES})
    except ConfigError as error:
        raise ConfigError(f"{error}; this is {FORMAT}") from error
    rows = tuple(_row(checked.run, variant) for variant in checked.variant)
    for row in rows:
        if row.config.run.output:
            expected = "none in a study, whose --output holds a folder for each run"
            raise config_error("run.output", row.config.run.output, expected)
        if "," in row.config.title:
            expected = "one without a comma, which separates the rows of --only"
            raise config_error("run.title", row.config.title, expected)
    choice = Choice(rows, tuple(checked.choice_seeds), checked.local_only_counterparts)
    variants = choice.settled({row.config.title: {} for row in rows})
    open_rows = [row for row in rows if row.candidates]
    _check_choice(checked, open_rows)
    return Study(variants, tuple(checked.seeds), choice if open_rows else None)


def _row(shared: Mapping[str, object], variant: Mapping[str, object]) -> Row:
    own = dict(variant)
    listed = _lists(own.pop(CANDIDATES, {}))
    every = [
        dict(zip(listed, values, strict=True)) for values in product(*listed.values())
    ]
    config = RunConfig.of({**flatten(shared), **flatten(own), **every[0]})
    return Row(config, tuple(every) if listed else ())


def _lists(value: object) -> dict[str, list[Scalar]]:
    if not isinstance(value, Mapping):
        raise config_error(CANDIDATES, value, "a table of lists, by section.key")
    found = {}
    for key, values in flatten(value).items():
        if not (isinstance(values, list) and len(values) > 1):
            raise config_error(
                f"{CANDIDATES}.{key}", values, "a list of two values or more"
            )
        found[key] = values
    return found


def _check_choice(checked: "_StudyFile", rows: list[Row]) -> None:
    """Refuse a choice that would favour a row, or look at what the table shows."""
    if bool(rows) != bool(checked.choice_seeds):
        expected = (
            "seeds to compare candidates with" if rows else "none, without candidates"
        )
        raise config_error("choice_seeds", checked.choice_seeds, expected)
    for seed in checked.choice_seeds:
        if seed in checked.seeds:
            raise config_error(
                "choice_seeds", seed, "a seed that is none of the table's"
            )
    budgets = {row.config.title: len(row.candidates) for row in rows}
    if len(set(budgets.values())) > 1:
        raise config_error(
            CANDIDATES, budgets, "equally many for each row that has some"
        )


def _check_sections(table: Mapping[str, object]) -> None:
    """Refuse keys of a study's table that are in no section."""
    for key, value in table.items():
        section, dot, _ = key.partition(".")
        if section not in RunConfig.model_fields:
            raise unknown_name(key, section, RunConfig.model_fields)
        if not (dot or isinstance(value, Mapping)):
            raise config_error(key, value, "a table, as this is a section")


class _StudyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field([0], min_length=1)
    choice_seeds: list[Annotated[int, Field(ge=0)]] = Field([])
    run: dict[str, Any] = Field({})
    variant: list[dict[str, Any]] = Field([{}], min_length=1)
    local_only_counterparts: bool = True
