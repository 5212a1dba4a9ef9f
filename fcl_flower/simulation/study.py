"""A study's TOML file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.algorithms.registry import DATASET, algorithm, local_only_counterpart
from fcl_flower.config.parsing import Scalar, flatten, read_toml, validate_params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, config_error, unknown_name

Variants: TypeAlias = tuple[RunConfig, ...]
"""One configuration for each row of a table, at seed 0."""
Values: TypeAlias = Mapping[str, Scalar]
"""Settings by ``section.key``."""


@dataclass(frozen=True, slots=True)
class Study:
    """A study: every row with each of the seeds."""

    rows: Variants
    """The rows; one with candidates has the values of the first."""
    seeds: tuple[int, ...]
    candidates: Mapping[str, tuple[Values, ...]] = field(default_factory=dict)
    """Candidates by the title of a row; the table has the best ones."""
    choice_seeds: tuple[int, ...] = ()
    """The seeds of each candidate's runs; none of them is a seed of the table."""
    counterparts: bool = False
    """Whether local-only counterparts are added to the table."""

    @property
    def variants(self) -> Variants:
        """The rows of the table."""
        return with_local_only(self.rows) if self.counterparts else self.rows

    def runs(self) -> list[RunConfig]:
        """List every run, seed by seed, so that early results are comparable.

        Clients' states are kept only if a row says ``true``, as many runs fill a disk.
        """
        rows = [
            row.replace(keep_clients="false") if row.run.keep_clients == "auto" else row
            for row in self.variants
        ]
        return [row.replace(seed=seed) for seed in self.seeds for row in rows]

    def mapped(self, change: Callable[[RunConfig], RunConfig]) -> Self:
        """Change the settings of all rows, whose titles stay."""
        return replace(self, rows=tuple(map(change, self.rows)))


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
    """List the variants of a comparison of strategies.

    Unless ``shared`` names a data set and a scenario, all strategies get the first
    strategy's own ones. Each parameter, by ``strategy.key``, goes to the strategies
    that have it.

    Raises:
        ConfigError: a strategy is unknown, or no strategy has a parameter.
    """
    methods = [algorithm(name) for name in names]
    keys = {
        method.name: {f"strategy.{key}" for key in method.params_type.model_fields}
        for method in methods
    }
    for key in params:
        if not any(key in own for own in keys.values()):
            raise unknown_name(key, key, sorted(set().union(*keys.values())))
    common = {}
    usually = {"data.datasets": DATASET, "scenario.name": ""}
    if shared.scenario.name == "local-data":  # the samples are the clients' own
        usually = {}
    for key, usual in usually.items():
        if not shared.flat()[key]:
            own = (str(method.defaults.get(key, usual)) for method in methods)
            common[key] = next((value for value in own if value != usual), usual)
    variants = []
    for method in methods:
        own_params = {k: v for k, v in params.items() if k in keys[method.name]}
        changes = {**common, "strategy.name": method.name, **own_params}
        variants.append(shared.replace(**changes))
    return with_local_only(variants) if counterparts else tuple(variants)


CANDIDATES = "candidates"
"""The table of a variant with the values to choose from."""

FORMAT = (
    "a study's file: seeds = [1, 2], [run] with what all runs share, such as "
    "scenario.clients = 4, and a [[variant]] for each row, such as "
    'strategy.name = "fedavg" (docs/howto/studies.md)'
)


def read_study(path: Path) -> Study:
    """Read a study from its TOML file.

    ``seeds`` is a list. ``[run]`` has the settings of all runs, and each
    ``[[variant]]`` the changes of its row, both by section. Federated variants get a
    local-only counterpart unless ``local_only_counterparts = false``. A variant's table
    ``candidates`` lists values of settings. All combinations are compared with
    ``choice_seeds`` before the table is made.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    content = read_toml(path, "study")
    try:
        file = validate_params(_StudyFile, content, f"study {path.name}: ")
        _check_sections(file.run)
        for variant in file.variant:
            _check_sections({k: v for k, v in variant.items() if k != CANDIDATES})
    except ConfigError as error:
        raise ConfigError(f"{error}; this is {FORMAT}") from error
    rows, candidates = [], {}
    for variant in file.variant:
        own = dict(variant)
        lists = _lists(own.pop(CANDIDATES, {}))
        every = [dict(zip(lists, v, strict=True)) for v in product(*lists.values())]
        row = RunConfig.of({**flatten(file.run), **flatten(own), **every[0]})
        rows.append(row)
        if lists:
            candidates[row.title] = tuple(every)
    for row in rows:
        if row.run.output:
            expected = "none in a study, whose --output holds a folder for each run"
            raise config_error("run.output", row.run.output, expected)
        if "," in row.title:
            expected = "one without a comma, which separates the rows of --only"
            raise config_error("run.title", row.title, expected)
        algorithm(row.strategy.name)  # refuses an unknown name now
    _check_choice(file, {title: len(values) for title, values in candidates.items()})
    return Study(
        tuple(rows),
        tuple(file.seeds),
        candidates,
        tuple(file.choice_seeds),
        file.local_only_counterparts,
    )


def _lists(value: object) -> dict[str, list[Scalar]]:
    if not isinstance(value, Mapping):
        raise config_error(CANDIDATES, value, "a table of lists, by section.key")
    lists = {}
    for key, values in flatten(value).items():
        if not (isinstance(values, list) and len(values) > 1):
            expected = "a list of two values or more"
            raise config_error(f"{CANDIDATES}.{key}", values, expected)
        lists[key] = values
    return lists


def _check_choice(file: "_StudyFile", budgets: Mapping[str, int]) -> None:
    """Refuse a choice that would favour a row, or use a seed of the table."""
    if bool(budgets) != bool(file.choice_seeds):
        expected = "seeds to compare candidates with"
        expected = expected if budgets else "none, without candidates"
        raise config_error("choice_seeds", file.choice_seeds, expected)
    for seed in file.choice_seeds:
        if seed in file.seeds:
            expected = "a seed that is none of the table's"
            raise config_error("choice_seeds", seed, expected)
    if len(set(budgets.values())) > 1:
        expected = "equally many for each row that has some"
        raise config_error(CANDIDATES, budgets, expected)


def _check_sections(table: Mapping[str, object]) -> None:
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
