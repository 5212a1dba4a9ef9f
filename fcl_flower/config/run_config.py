"""A run's whole configuration: nine sections, frozen and checked."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self, TypeAlias

import numpy as np
from pydantic import Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fcl_flower.config.parsing import (
    Scalar,
    first_complaint,
    flatten,
    read_toml,
    toml,
)
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
from fcl_flower.core.errors import ConfigError, as_set, config_error, unknown_name
from fcl_flower.core.formats import KEY, check_format

Wrong: TypeAlias = tuple[str, object, str]
"""Key, value and expectation, as `core.errors.config_error` takes them."""

FORMAT: Final = 2
"""Of ``config.toml``; a file without a number is of format 1."""
_FIXED: Final[Mapping[str, object]] = MappingProxyType({"federation.secure_bits": 32})
"""Settings of format 1 that have one value for good."""
_RECORDED: Final = frozenset({"data.root", "run.id", "run.output"})
"""Settings that the file of a run has in any case, as it has them all."""


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
    def _settings_go_together(self) -> Self:
        for key, value, expected in chain(self._of_updates(), self._of_training()):
            raise ValueError(str(config_error(key, value, expected)))
        return self

    def must_be(
        self, keys: str, why: str, value: Scalar | None = None
    ) -> Iterator[Wrong]:
        """Find which of some settings are not what they must be.

        Args:
            keys: settings by ``section.key``, separated by spaces.
            why: ends the sentence of a refusal.
            value: what they must be; None for their defaults.
        """
        for key in keys.split():
            section, _, leaf = key.partition(".")
            usual = DEFAULTS[key] if value is None else value
            if (given := getattr(getattr(self, section), leaf)) != usual:
                yield key, given, f"{'none' if usual == '' else as_set(usual)} {why}"

    def _of_updates(self) -> Iterator[Wrong]:
        federation, asynchronous = self.federation, self.asynchronous
        clients, privacy = self.scenario.clients, self.privacy
        needed, fraction = federation.min_updates, federation.client_fraction
        if clients and needed > max(1, round(clients * fraction)):
            expected = f"at most the clients of a round ({clients} x {fraction})"
            yield "federation.min_updates", needed, expected
        if asynchronous.enabled:
            keys = "federation.client_fraction federation.quorum"
            why = "in an asynchronous run, which has no rounds"
            yield from self.must_be(keys, why)
        if asynchronous.enabled and (privacy.unit != "none" or not privacy.scores):
            unit, scores = repr(privacy.unit), as_set(privacy.scores)
            why = f"with privacy.unit {unit} and privacy.scores {scores}"
            yield "asynchronous.enabled", True, f"false {why}, which go by rounds"
        limit = federation.examples_limit
        if 0 < limit < 1:
            yield "federation.examples_limit", limit, "0 or at least 1"
        attack, count = federation.attack, federation.attackers
        if bool(attack) != bool(count):
            expected = "at least 1 with" if attack else "0 without"
            yield "federation.attackers", count, f"{expected} federation.attack"
        if clients and count >= clients:
            expected = f"fewer than scenario.clients ({clients})"
            yield "federation.attackers", count, expected
        durations = asynchronous.simulated_durations
        if durations and len(asynchronous.durations) != clients:
            each = f"a number above 0 for each of scenario.clients ({clients})"
            key = "asynchronous.simulated_durations"
            yield key, durations, f"{each}, separated by commas"

    def _of_training(self) -> Iterator[Wrong]:
        training, privacy, must_be = self.training, self.privacy, self.must_be
        optimizer, schedule = training.optimizer, training.lr_schedule
        if optimizer != "sgd":
            why = f"with training.optimizer {optimizer!r}, which has moments of its own"
            yield from must_be("training.momentum", why)
        if not training.momentum:
            why = "without training.momentum, of which it is a form"
            yield from must_be("training.nesterov", why)
        if schedule:
            why = f"with training.lr_schedule {schedule!r}, which sets all rates"
            yield from must_be("training.lr_patience federation.patience", why, 0)
        if schedule == "step" and not training.step_places:
            expected = "ascending fractions between 0 and 1, such as '0.7,0.9'"
            yield "training.lr_steps", training.lr_steps, expected
        if schedule != "step":
            why = "without training.lr_schedule 'step'"
            yield from must_be("training.lr_steps training.lr_factor", why)
        unit, noise = privacy.unit, privacy.noise_multiplier
        if (unit != "none") != (noise > 0):
            expected = "0" if unit == "none" else "a number above 0"
            expected += f", as privacy.unit is {unit!r}"
            yield "privacy.noise_multiplier", noise, expected
        if unit == "example":
            why = "with privacy.unit 'example', by which no example may tell of others"
            yield from must_be("training.precision training.balance", why)

    @property
    def title(self) -> str:
        """Name of the run in tables."""
        suffix = " local-only" if self.strategy.local_only else ""
        return (self.run.title or self.strategy.name) + suffix

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Make a configuration of sections, nested or with dots in their keys."""
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
    def read(cls, path: Path, key: str) -> Self:
        """Read a TOML file, named by the setting ``key``.

        Raises:
            ConfigError: a key or a value is refused, or the file is of a newer format.
        """
        values = flatten(read_toml(path, key))
        number = values.pop(KEY, 1)
        check_format(path, number, FORMAT)
        if number == 1:
            values = {k: v for k, v in values.items() if (k, v) not in _FIXED.items()}
        if values.keys() >= _RECORDED:
            # Before there was a choice, pixels were these, whatever a network says.
            values.setdefault("data.normalise", "fixed")
        return cls.of(values)

    @classmethod
    def from_settings(cls, **settings: object) -> Self:
        """Make a configuration of keyword arguments.

        Args:
            settings: short names (`SHORT`), such as ``clients=4``; names of sections
                with a mapping, such as ``scenario={"mean_duration": 8}``, or, where
                the section has a name, with it: ``scenario="concepts"``; or keys with
                a dot.
        """
        return cls.of(long_keys(settings))

    def replace(self, **settings: object) -> Self:
        """Copy it with other values; the arguments of `from_settings`."""
        return self.of({**self.flat(), **long_keys(settings)})

    def flat(self) -> dict[str, Scalar]:
        """List all values by ``section.key``, parameters that are given included."""
        found: dict[str, Scalar] = {}
        for name in type(self).model_fields:
            section: Section = getattr(self, name)
            for key in type(section).model_fields:
                if key != "params":
                    found[f"{name}.{key}"] = getattr(section, key)
            if isinstance(section, NamedSection):
                found |= {f"{name}.{key}": v for key, v in section.params.items()}
        return found

    def to_file(self) -> str:
        """Write what `read` reads."""
        return f"{KEY} = {FORMAT}\n\n{self.to_toml()}"

    def to_toml(self, prefix: str = "") -> str:
        """Write all values as TOML, a table a section, named behind ``prefix``."""
        tables: dict[str, list[str]] = {}
        for key, value in self.flat().items():
            section, _, leaf = key.partition(".")
            tables.setdefault(section, []).append(f"{leaf} = {toml(value)}")
        return "\n".join(
            f"[{prefix}{section}]\n" + "\n".join(lines) + "\n"
            for section, lines in tables.items()
        )


DEFAULTS: Final[Mapping[str, Scalar]] = MappingProxyType(
    RunConfig.model_construct().flat()
)
"""Each setting's default, by ``section.key``."""


def field_of(key: str) -> FieldInfo:
    """Find the declaration of a setting by ``section.key``."""
    section, _, leaf = key.partition(".")
    kind = RunConfig.model_fields[section].annotation
    assert kind is not None
    found: FieldInfo = kind.model_fields[leaf]
    return found


def _plain(value: object) -> object:
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
    """Name settings by ``section.key``; see `RunConfig.from_settings`."""
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
    """Refuse a 0 that a user has written, where 0 stands for nothing given."""
    for key in _OPEN:
        if key in given and given[key] == 0:
            raise config_error(
                key, given[key], "more than 0, or nothing for what suits"
            )


def refuse_attack(config: RunConfig) -> None:
    """Refuse a run with hostile clients."""
    attack = config.federation.attack
    if attack:
        expected = "none, as only a simulation in one process has hostile clients"
        raise config_error("federation.attack", attack, expected)
