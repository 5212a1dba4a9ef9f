"""The edge where text becomes one frozen, checked configuration."""

import math
from collections.abc import Mapping
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fcl_flower.config.parsing import hyphenated, sentence, toml
from fcl_flower.core.errors import ConfigError

Placement: TypeAlias = Literal["both", "attention", "feed-forward"]
EncoderPrecision: TypeAlias = Literal["float32", "bfloat16"]


class RunConfig(BaseModel):
    """One run, whole: with the same values it gives the same numbers.

    Flat, because Flower's run configuration is; the keys are the field names with
    hyphens, in ``config.toml``, in ``--run-config`` and on the command line, whose
    help is made of the sentences below the fields.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=hyphenated,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    strategy: str = "fedweit"
    """Name of the algorithm (see fcl list)."""
    label: str = ""
    """What tables call the run; empty for the strategy's name."""
    local_only: bool = False
    """Run the same method, but nobody talks to anybody."""
    set: str = ""
    """The algorithm's own settings: 'lambda1 = 0.001, knowledge = "sample:10"'."""
    scenario: str = ""
    """How tasks are cut and dealt (see fcl list); empty for what suits the data."""
    dataset: str = ""
    """One name, or several separated by commas; empty for what suits the strategy."""
    data_root: str = ""
    """Folder with data sets; empty for $FCL_DATA or ./data."""
    word_vectors: str = ""
    """File of word vectors for text; empty to train some on the training texts."""
    model: str = ""
    """Name of the network; empty for what suits the data."""
    features: int = Field(0, ge=0)
    """Numbers in a sample of plain numbers; 0 for those of the data set. Where clients
    have texts of their own: numbers in a word's vector."""
    backbone: str = ""
    """Pre-trained encoder of a transformer: minilm, a folder, or a name of the Hub."""
    max_tokens: int = Field(64, ge=3)
    """Tokens of a text that a transformer reads; what is behind them is cut."""
    bottleneck: int = Field(48, ge=1)
    """Width of an Enhancer."""
    placement: Placement = "both"
    """Where Enhancers act in a block: attention, feed-forward, or both."""
    enhanced_blocks: int = Field(0, ge=0)
    """How many of the last blocks have Enhancers; 0 for all."""
    encoder_precision: EncoderPrecision = "float32"
    """In which a transformer computes: bfloat16 is faster where processors have it."""
    head: Literal["", "multi", "single"] = ""
    """One head a task, or a single one over all labels; empty for what suits."""
    clients: int = Field(0, ge=0)
    """Number of clients; 0 for as many as there are nodes, or for what suits."""
    tasks: int = Field(4, ge=1)
    """Tasks in each client's stream; hidden concepts in the scenario concepts."""
    classes_per_task: int = Field(0, ge=0)
    """Classes in a task; 0 for the scenario's default. Where clients have data of their
    own: the most that any task has."""
    labels: str = ""
    """All classes, separated by commas, in the order of a single head; only where
    clients have data of their own."""
    valid_fraction: float = Field(0.15, gt=0, lt=1)
    """Share of a task's training examples held out to validate."""
    window: int = Field(320, ge=2)
    """Training examples that a client has in a round where concepts are hidden."""
    stay: int = Field(1, ge=0)
    """Rounds that a client stays with a hidden concept, on average; 0: all at once."""
    class_share: float = Field(0.6, gt=0, le=1)
    """Share of each task's classes that a client meets, in class-incremental."""
    public_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of each class's training samples that the server has, in class-incremental;
    no client has them."""
    public_dataset: str = ""
    """Name of a data set that the server has instead, in class-incremental."""
    public_data: str = ""
    """File of labelled samples on the server, or folder of images, where clients have
    data of their own."""
    same_labels: str = ""
    """Data sets whose classes of one name are one, such as 'a=b=c,d=e', in
    class-incremental."""
    train_samples: int = Field(0, ge=0)
    """Training samples of each class for all together, in class-incremental; 0: all."""
    test_samples: int = Field(0, ge=0)
    """Test samples of each class for all together, in class-incremental; 0: all."""
    concept_ids: bool = False
    """Tell clients which hidden concept they meet: for baselines with task ids."""
    rounds: int = Field(0, ge=0)
    """Communication rounds for each task; of the whole run where concepts are hidden;
    0 for what suits."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between evaluations; 0 for the end of each task, or for what suits."""
    epochs: int = Field(1, ge=1)
    """Local passes over the task's data in a round."""
    batch_size: int = Field(0, ge=0)
    """Examples in a training step; 0 for what suits the model."""
    learning_rate: float = Field(0.0, ge=0)
    """Adam's rate at the start of a task; 0 for what suits the model."""
    patience: int = Field(3, ge=0)
    """Stagnating epochs before the rate is divided by three; 0 for a constant rate."""
    stop_after: int = Field(0, ge=0)
    """Stagnating epochs that end a round's training early; 0 for never."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the clients that take part in a round."""
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    """In rounds, or each client at its own pace: its update counts as it comes."""
    mixing: float = Field(0.6, gt=0, le=1)
    """How far an asynchronous update moves the server's model, if it is not stale."""
    staleness: float = Field(0.5, ge=0)
    """Exponent by which stale asynchronous updates count less; 0 for not at all."""
    pace: str = ""
    """Planted duration of each client's training, in simulated time: '1,1,1,4'."""
    min_replies: int = Field(1, ge=1)
    """Usable replies that a round needs."""
    attempts: int = Field(3, ge=1)
    """How often a round without them is tried, or a client asked that fails."""
    timeout: float = Field(3600.0, gt=0)
    """Seconds to wait for a round's replies, or for clients to connect."""
    norm_limit: float = Field(1000.0, ge=0)
    """How many times the norm of the server's weights an update's may be; 0: any."""
    seed: int = Field(0, ge=0)
    """Of everything random."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of float32 tensors on the wire."""
    device: str = "auto"
    """auto, cpu, or a torch device name."""
    threads: int = Field(1, ge=1)
    """CPU threads of a client; results repeat exactly only with 1."""
    memory: str = "context"
    """Where clients keep their state: context (Flower's), or a folder."""
    name: str = ""
    """Under which clients keep the state of this run; empty for Flower's number."""
    output: str = ""
    """Folder for the results; empty for a new one under runs/."""
    resume: bool = False
    """Go on with the run in the output folder, after its last finished round."""

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

    @model_validator(mode="after")
    def _no_rounds_where_nobody_waits(self) -> Self:
        if self.mode == "asynchronous" and self.fraction < 1:
            raise ValueError(
                f"fraction: {self.fraction} is refused: expected 1 in an asynchronous "
                f"run, in which every client goes its own way"
            )
        return self

    @model_validator(mode="after")
    def _pace_is_told_for_everyone(self) -> Self:
        pace = self.paces
        usable = len(pace) == self.clients and all(0 < p < math.inf for p in pace)
        if self.pace and not usable:
            raise ValueError(
                f"pace: {self.pace!r} is refused: expected a number above 0 for each "
                f"of clients ({self.clients}), separated by commas"
            )
        return self

    @property
    def paces(self) -> tuple[float, ...]:
        """Return the planted durations by client; none where they are real."""
        try:
            return tuple(float(text) for text in self.pace.split(",") if text.strip())
        except ValueError:
            return ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets, in the order given."""
        return tuple(n.strip() for n in self.dataset.split(",") if n.strip())

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of all data sets, the server's own last."""
        return (*self.datasets, *filter(None, [self.public_dataset]))

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order given."""
        return tuple(n.strip() for n in self.labels.split(",") if n.strip())

    @property
    def title(self) -> str:
        """Return what tables and pages call the run."""
        return (self.label or self.strategy) + (" isolated" if self.local_only else "")

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "RunConfig":
        """Return the configuration that ``values`` give.

        Raises:
            ConfigError: a key is unknown or a value refused; one sentence says so.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(sentence(cls, error)) from error

    def flat(self) -> dict[str, bool | int | float | str]:
        """Return every key with its value, as Flower and TOML want them."""
        return self.model_dump(by_alias=True)

    def with_values(self, **values: object) -> "RunConfig":
        """Return a checked copy with some fields replaced."""
        return RunConfig.of({**self.model_dump(), **values})

    def to_toml(self) -> str:
        """Return the text of a ``config.toml`` that runs this again."""
        return "".join(f"{key} = {toml(value)}\n" for key, value in self.flat().items())
