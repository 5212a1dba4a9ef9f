"""A run's whole configuration: nine sections, frozen and checked."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from fcl_flower.config.parsing import Scalar, first_complaint, flatten, toml
from fcl_flower.config.sections import (
    AsynchronousSection,
    DataSection,
    FederationSection,
    ModelSection,
    NamedSection,
    PrivacySection,
    RunSection,
    ScenarioSection,
    Section,
    StrategySection,
    TrainingSection,
)
from fcl_flower.core.errors import ConfigError, config_error, unknown_name


class RunConfig(Section):
    """One run: with the same values it gives the same numbers.

    A key is ``section.key`` wherever it is text: in ``--set``, in ``--run-config`` and
    in messages. A file has a table for each section.
    """

    strategy: StrategySection = Field(default_factory=StrategySection)
    scenario: ScenarioSection = Field(default_factory=ScenarioSection)
    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection = Field(default_factory=ModelSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    asynchronous: AsynchronousSection = Field(default_factory=AsynchronousSection)
    privacy: PrivacySection = Field(default_factory=PrivacySection)
    run: RunSection = Field(default_factory=RunSection)

    @model_validator(mode="after")
    def _updates_can_be_had(self) -> Self:
        clients, fraction = self.scenario.clients, self.federation.client_fraction
        needed = self.federation.min_updates
        if clients and needed > max(1, round(clients * fraction)):
            raise ValueError(
                f"federation.min_updates: got {needed}, expected at most the clients "
                f"of a round ({clients} x {fraction})"
            )
        return self

    @model_validator(mode="after")
    def _no_fraction_without_rounds(self) -> Self:
        for key in ("client_fraction", "quorum"):
            given = getattr(self.federation, key)
            if self.asynchronous.enabled and given < 1:
                raise ValueError(
                    f"federation.{key}: got {given}, expected 1 in an asynchronous "
                    "run, which has no rounds"
                )
        return self

    @model_validator(mode="after")
    def _a_limit_leaves_the_median(self) -> Self:
        limit = self.federation.examples_limit
        if 0 < limit < 1:
            raise ValueError(
                f"federation.examples_limit: got {limit}, expected 0 or at least 1"
            )
        return self

    @model_validator(mode="after")
    def _attackers_attack_somebody(self) -> Self:
        attack, count = self.federation.attack, self.federation.attackers
        if bool(attack) != bool(count):
            raise ValueError(
                f"federation.attackers: got {count}, expected "
                + ("at least 1 with" if attack else "0 without")
                + " federation.attack"
            )
        if self.scenario.clients and count >= self.scenario.clients:
            raise ValueError(
                f"federation.attackers: got {count}, expected fewer than "
                f"scenario.clients ({self.scenario.clients})"
            )
        return self

    @model_validator(mode="after")
    def _durations_are_given_for_all(self) -> Self:
        given = self.asynchronous.simulated_durations
        if given and len(self.asynchronous.durations) != self.scenario.clients:
            raise ValueError(
                f"asynchronous.simulated_durations: got {given!r}, expected a number "
                f"above 0 for each of scenario.clients ({self.scenario.clients}), "
                "separated by commas"
            )
        return self

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        momentum, optimizer = self.training.momentum, self.training.optimizer
        if momentum and optimizer != "sgd":
            raise ValueError(
                f"training.momentum: got {momentum}, expected 0 with "
                f"training.optimizer {optimizer!r}, which has moments of its own"
            )
        return self

    @model_validator(mode="after")
    def _noise_goes_with_a_privacy_unit(self) -> Self:
        unit, noise = self.privacy.unit, self.privacy.noise_multiplier
        if (unit != "none") != (noise > 0):
            expected = "0" if unit == "none" else "a number above 0"
            raise ValueError(
                f"privacy.noise_multiplier: got {noise}, expected {expected}, as "
                f"privacy.unit is {unit!r}"
            )
        return self

    @model_validator(mode="after")
    def _single_gradients_are_exact(self) -> Self:
        precision, unit = self.training.precision, self.privacy.unit
        if precision != "float32" and unit == "example":
            raise ValueError(
                f"training.precision: got {precision!r}, expected 'float32' with "
                "privacy.unit 'example', which clips the gradient of each example"
            )
        return self

    @model_validator(mode="after")
    def _privacy_is_counted_by_rounds(self) -> Self:
        unit, scores = self.privacy.unit, self.privacy.scores
        if self.asynchronous.enabled and (unit != "none" or not scores):
            raise ValueError(
                "asynchronous.enabled: got True, expected false with privacy.unit "
                f"{unit!r} and privacy.scores {str(scores).lower()}, which go by rounds"
            )
        return self

    @property
    def title(self) -> str:
        """Return what tables call the run."""
        suffix = " local-only" if self.strategy.local_only else ""
        return (self.run.title or self.strategy.name) + suffix

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Return the configuration of sections, nested or with dots in their keys.

        Raises:
            ConfigError: a section or key is unknown, or a value refused.
        """
        nested: dict[str, dict[str, object]] = {}
        for key, value in flatten(values).items():
            section, dot, leaf = key.partition(".")
            if section not in cls.model_fields:
                raise unknown_name(key, section, cls.model_fields)
            if not dot:
                raise config_error(key, value, "a table, as this is a section")
            if leaf.startswith("params."):
                leaf = leaf.removeprefix("params.")
            nested.setdefault(section, {})[leaf] = _plain(value)
        try:
            return cls.model_validate(nested)
        except ValidationError as error:
            raise first_complaint(cls, error) from error

    @classmethod
    def from_settings(cls, **settings: object) -> Self:
        """Return the configuration of keyword arguments.

        Args:
            settings: short names (`SHORT`), such as ``clients=4``; names of sections
                with a mapping, such as ``scenario={"mean_duration": 8}``, or, where
                the section has a name, with it: ``scenario="concepts"``; or keys with
                a dot.

        Raises:
            ConfigError: a key is unknown, or a value refused.
        """
        return cls.of(long_keys(settings))

    def replace(self, **settings: object) -> Self:
        """Return a copy with other values; the arguments of `from_settings`.

        Raises:
            ConfigError: a key is unknown, or a value refused.
        """
        return self.of({**self.flat(), **long_keys(settings)})

    def flat(self) -> dict[str, Scalar]:
        """Return all values by ``section.key``, parameters that are given included."""
        found: dict[str, Scalar] = {}
        for name in type(self).model_fields:
            section: Section = getattr(self, name)
            for key in type(section).model_fields:
                if key != "params":
                    found[f"{name}.{key}"] = getattr(section, key)
            if isinstance(section, NamedSection):
                found |= {f"{name}.{key}": v for key, v in section.params.items()}
        return found

    def to_toml(self, prefix: str = "") -> str:
        """Return all values as TOML, a table a section, named behind ``prefix``."""
        tables: dict[str, list[str]] = {}
        for key, value in self.flat().items():
            section, _, leaf = key.partition(".")
            tables.setdefault(section, []).append(f"{leaf} = {toml(value)}")
        return "\n".join(
            f"[{prefix}{section}]\n" + "\n".join(lines) + "\n"
            for section, lines in tables.items()
        )


def _plain(value: object) -> object:
    """Turn a scalar of NumPy into one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _short_names() -> dict[str, str]:
    found = {
        key: f"{section}.{key}"
        for section, field in RunConfig.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
        if key not in {"name", "params"}
    }
    return found | {
        "dataset": "data.datasets",
        "data_root": "data.root",
        "rounds": "federation.rounds_per_task",
    }


SHORT: Final[Mapping[str, str]] = MappingProxyType(_short_names())
"""Short names of settings, which no two sections share."""


def long_keys(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings by ``section.key``; see `RunConfig.from_settings`.

    Raises:
        ConfigError: a short name is unknown.
    """
    found: dict[str, object] = {}
    for key, value in settings.items():
        field = RunConfig.model_fields.get(key)
        if "." in key:
            found[key] = value
        elif field is None:
            if key not in SHORT:
                error = unknown_name(
                    key, key, sorted({*SHORT, *RunConfig.model_fields})
                )
                if "did you mean" in str(error):
                    raise error
                hint = (
                    f"a parameter of the strategy is given as strategy={{{key!r}: ...}}"
                )
                raise ConfigError(f"{error}; {hint}")
            found[SHORT[key]] = value
        elif isinstance(value, Mapping):
            found |= flatten({key: value})
        elif key == "asynchronous":
            found["asynchronous.enabled"] = value
        elif "name" in field.annotation.model_fields:  # type: ignore[union-attr]
            found[f"{key}.name"] = value
        else:
            raise config_error(key, value, "a mapping, as this is a section")
    return found


_OPEN = (
    "federation.rounds_per_task",
    "scenario.classes_per_task",
    "training.batch_size",
    "training.learning_rate",
)
"""Settings that are decided later where they are 0."""


def check_not_zero(given: Mapping[str, object]) -> None:
    """Refuse a 0 that a user has written, where 0 stands for nothing given.

    Args:
        given: settings by ``section.key``.

    Raises:
        ConfigError: there is one.
    """
    for key in _OPEN:
        if key in given and given[key] == 0:
            raise config_error(
                key, given[key], "more than 0, or nothing for what suits"
            )


def refuse_attack(config: RunConfig) -> None:
    """Refuse a run with hostile clients.

    Raises:
        ConfigError: it has some.
    """
    attack = config.federation.attack
    if attack:
        expected = "none, as only a simulation in one process has hostile clients"
        raise config_error("federation.attack", attack, expected)
