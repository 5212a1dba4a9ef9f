"""A run's whole configuration: nine sections, frozen and checked."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

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
from fcl_flower.core.errors import ConfigError, config_error, unknown_name
from fcl_flower.core.formats import KEY, check_format

FORMAT: Final = 2
"""The ``config.toml`` of a run has this number; a user's own file needs none."""


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

    def _of_updates(self) -> Iterator[tuple[str, object, str]]:
        federation, clients = self.federation, self.scenario.clients
        needed, fraction = federation.min_updates, federation.client_fraction
        if clients and needed > max(1, round(clients * fraction)):
            expected = f"at most the clients of a round ({clients} x {fraction})"
            yield "federation.min_updates", needed, expected
        for key in ("client_fraction", "quorum"):
            given = getattr(federation, key)
            if self.asynchronous.enabled and given < 1:
                expected = "1 in an asynchronous run, which has no rounds"
                yield f"federation.{key}", given, expected
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
        given = self.asynchronous.simulated_durations
        if given and len(self.asynchronous.durations) != clients:
            yield (
                "asynchronous.simulated_durations",
                given,
                f"a number above 0 for each of scenario.clients ({clients}), separated "
                "by commas",
            )

    def _of_training(self) -> Iterator[tuple[str, object, str]]:
        training, privacy = self.training, self.privacy
        if training.momentum and training.optimizer != "sgd":
            yield (
                "training.momentum",
                training.momentum,
                f"0 with training.optimizer {training.optimizer!r}, which has moments "
                "of its own",
            )
        if training.nesterov and not training.momentum:
            expected = "false without training.momentum, of which it is a form"
            yield "training.nesterov", True, expected
        yield from self._of_rates()
        unit, noise, scores = privacy.unit, privacy.noise_multiplier, privacy.scores
        if (unit != "none") != (noise > 0):
            expected = "0" if unit == "none" else "a number above 0"
            expected += f", as privacy.unit is {unit!r}"
            yield "privacy.noise_multiplier", noise, expected
        if training.precision != "float32" and unit == "example":
            yield (
                "training.precision",
                training.precision,
                "'float32' with privacy.unit 'example', which clips the gradient of "
                "each example",
            )
        if training.balance != "none" and unit == "example":
            yield (
                "training.balance",
                training.balance,
                "'none' with privacy.unit 'example', since how often a class occurs "
                "tells of single examples",
            )
        if self.asynchronous.enabled and (unit != "none" or not scores):
            yield (
                "asynchronous.enabled",
                True,
                f"false with privacy.unit {unit!r} and privacy.scores "
                f"{str(scores).lower()}, which go by rounds",
            )

    def _of_rates(self) -> Iterator[tuple[str, object, str]]:
        section, schedule = self.training, self.training.lr_schedule
        if schedule and section.lr_patience:
            expected = f"0 with training.lr_schedule {schedule!r}, which sets the rate"
            yield "training.lr_patience", section.lr_patience, expected
        if schedule and self.federation.patience:
            expected = (
                f"0 with training.lr_schedule {schedule!r}, which is planned over all "
                "rounds of a task"
            )
            yield "federation.patience", self.federation.patience, expected
        if schedule == "step" and not section.step_places:
            expected = "ascending fractions between 0 and 1, such as '0.7,0.9'"
            yield "training.lr_steps", section.lr_steps, expected
        without = "without training.lr_schedule 'step'"
        if schedule != "step" and section.lr_steps:
            yield "training.lr_steps", section.lr_steps, f"none {without}"
        usual = type(section).model_fields["lr_factor"].default
        if schedule != "step" and section.lr_factor != usual:
            yield "training.lr_factor", section.lr_factor, f"{usual} {without}"

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

        The setting ``config`` names a user's own file; all others name that of a run.

        Raises:
            ConfigError: a key or a value is refused, or the file is of another format.
        """
        values = flatten(read_toml(path, key))
        if KEY in values or key != "config":
            check_format(path, values.pop(KEY, None), FORMAT)
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
