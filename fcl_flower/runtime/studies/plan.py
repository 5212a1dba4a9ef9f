"""What is compared: one configuration for each row of a table, and seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from fcl_flower.algorithms.registry import DATASET, algorithm, local_only_counterpart
from fcl_flower.config.parsing import Scalar
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import unknown

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
        """Return the table's rows.

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
        """Return what the table has of a row: it, and perhaps its counterpart."""
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
        """Return every run, seed by seed, so that early results are comparable."""
        return [
            variant.replace(seed=seed)
            for seed in self.seeds
            for variant in self.variants
        ]

    def mapped(self, change: Callable[[RunConfig], RunConfig]) -> Self:
        """Return the same with the settings of all rows changed."""
        variants = tuple(map(change, self.variants))
        choice = self.choice
        if choice is not None:
            rows = (replace(row, config=change(row.config)) for row in choice.rows)
            choice = replace(choice, rows=tuple(rows))
        return replace(self, variants=variants, choice=choice)


def with_local_only(variants: Iterable[RunConfig]) -> Variants:
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
) -> Variants:
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
