"""The edge where text becomes one frozen, checked configuration."""

import tomllib
from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fcl_flower.errors import ConfigError

P = TypeVar("P", bound=BaseModel)


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


class RunConfig(BaseModel):
    """One run, whole: with the same values it gives the same numbers.

    Flat, because Flower's run configuration is; the keys are the field names with
    hyphens, in ``config.toml``, in ``--run-config`` and on the command line.

    Attributes:
        strategy: name of the algorithm (``fcl list``).
        isolated: the same method, but nobody talks to anybody.
        set: the algorithm's own hyper-parameters as a TOML inline table without
            its braces, such as ``lambda1 = 0.001, knowledge = "sample:10"``.
        scenario: how tasks are cut and dealt.
        dataset: one name, or several separated by commas.
        data_root: folder with data sets; empty for ``$FCL_DATA`` or ``./data``.
        model: name of the network; empty for the data set's default.
        head: ``multi`` for one head a task, ``single`` for one over all labels.
        clients: number of clients; 0 for as many as there are nodes.
        tasks: tasks in each client's stream.
        classes_per_task: classes in a task; 0 for the scenario's default.
        valid_fraction: share of a task's training examples held out to validate.
        rounds: communication rounds for each task.
        epochs: local passes over the task's data in a round.
        batch_size: examples in a training step.
        learning_rate: Adam's rate at the start of a task.
        patience: stagnating epochs before the rate is divided by three.
        fraction: share of the clients that take part in a round.
        min_replies: usable replies that a round needs.
        timeout: seconds to wait for a round's replies.
        seed: of everything random.
        precision: of float32 tensors on the wire.
        device: ``auto``, ``cpu`` or a torch device name.
        threads: CPU threads of a client; results repeat exactly only with 1.
        memory: where clients keep their state: ``context`` (Flower's), or a folder.
        output: folder for the results; empty for a new one under ``runs/``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_hyphenated,
        populate_by_name=True,
    )

    strategy: str = "fedweit"
    isolated: bool = False
    set: str = ""
    scenario: str = "overlapped"
    dataset: str = "digits"
    data_root: str = ""
    model: str = ""
    head: Literal["multi", "single"] = "multi"
    clients: int = Field(4, ge=0)
    tasks: int = Field(4, ge=1)
    classes_per_task: int = Field(0, ge=0)
    valid_fraction: float = Field(0.15, gt=0, lt=1)
    rounds: int = Field(5, ge=1)
    epochs: int = Field(1, ge=1)
    batch_size: int = Field(20, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    patience: int = Field(3, ge=1)
    fraction: float = Field(1.0, gt=0, le=1)
    min_replies: int = Field(1, ge=1)
    timeout: float = Field(3600.0, gt=0)
    seed: int = Field(0, ge=0)
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    device: str = "auto"
    threads: int = Field(1, ge=1)
    memory: str = "context"
    output: str = ""

    @model_validator(mode="after")
    def _replies_can_be_had(self) -> Self:
        if self.clients and self.min_replies > max(
            1, round(self.clients * self.fraction)
        ):
            raise ValueError(
                f"min-replies: {self.min_replies} is refused: expected at most the "
                f"clients of a round ({self.clients} x {self.fraction})"
            )
        return self

    @property
    def datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets, in the order given."""
        return tuple(n.strip() for n in self.dataset.split(",") if n.strip())

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "RunConfig":
        """Return the configuration that ``values`` give.

        Raises:
            ConfigError: a key is unknown or a value refused; one sentence says so.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_sentence(cls, error)) from error

    def flat(self) -> dict[str, bool | int | float | str]:
        """Return every key with its value, as Flower and TOML want them."""
        return self.model_dump(by_alias=True)

    def with_values(self, **values: object) -> "RunConfig":
        """Return a checked copy with some fields replaced."""
        return RunConfig.of({**self.model_dump(), **values})

    def to_toml(self) -> str:
        """Return the text of a ``config.toml`` that runs this again."""
        return "".join(f"{key} = {toml(value)}\n" for key, value in self.flat().items())


def toml(value: bool | int | float | str) -> str:
    """Return a scalar as TOML text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)


def settings(text: str) -> dict[str, Any]:
    """Return the algorithm's hyper-parameters that ``RunConfig.set`` holds.

    Raises:
        ConfigError: the text is not the inside of a TOML inline table.
    """
    try:
        found: dict[str, Any] = tomllib.loads(f"set = {{{text}}}")["set"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"set: {text!r} is refused: expected 'key = value, ...' in TOML ({error})"
        ) from error
    return found


def check_params(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return the hyper-parameters of one half.

    Raises:
        ConfigError: a value has the wrong type or lies out of range.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("set " + _sentence(kind, error)) from error


def _sentence(kind: type[BaseModel], error: ValidationError) -> str:
    """Return the first complaint as one sentence with key, value, expectation."""
    first = error.errors()[0]
    key = _hyphenated(".".join(str(part) for part in first["loc"]))
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(map(_hyphenated, kind.model_fields)))
        return f"{key}: unknown key; expected one of {known}"
    message = first["msg"].removeprefix("Value error, ")
    if not key:
        return message
    expected = message.removeprefix("Input should be ")
    return f"{key}: {first['input']!r} is refused: expected {expected}"
