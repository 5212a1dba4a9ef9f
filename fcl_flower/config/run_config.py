"""A run's whole configuration: nine sections, frozen and checked.

A section declares its settings with type, range and default. The sentence below a
setting is its help, on the command line, in ``fcl list`` and in the documentation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from fcl_flower.aggregation import Rule, Weighting
from fcl_flower.config.parsing import (
    Counts,
    Frozen,
    Scalar,
    first_complaint,
    flatten,
    parse_inline,
    read_toml,
    toml,
)
from fcl_flower.core.errors import ConfigError, as_set, config_error, unknown_name
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.core.share import share

LookAlikes: TypeAlias = Literal["refuse", "merge", "keep"]

Attack: TypeAlias = Literal[
    "", "sign-flip", "noise", "scaling", "label-flip", "counts", "adapters"
]


class NamedSection(Frozen):
    """A section that names a thing, which has parameters of its own.

    Each key that is no field of the section is a parameter: ``[strategy]`` may hold
    ``name = "fedweit"`` and ``lambda1 = 0.001``. The named thing declares its
    parameters, which are checked when a run is resolved.
    """

    name: str = ""
    params: Mapping[str, Scalar] = Field({})
    """Parameters of what is named; text is the inside of a TOML inline table."""

    @classmethod
    def keys(cls) -> set[str]:
        """List the keys that are no parameters."""
        return {*cls.model_fields} - {"params"}

    @classmethod
    def title(cls) -> str:
        """Name the section."""
        return cls.__name__.removesuffix("Section").lower()

    @model_validator(mode="before")
    @classmethod
    def _gather_params(cls, values: Any) -> Any:  # noqa: ANN401
        if not isinstance(values, Mapping):
            return values
        fields = {k: value for k, value in values.items() if k in cls.model_fields}
        params = fields.get("params", {})
        if isinstance(params, str):
            params = parse_inline(params, f"{cls.title()}.params")
        if not isinstance(params, Mapping):
            return values
        rest = {key: value for key, value in values.items() if key not in fields}
        return {**fields, "params": {**params, **rest}}


class StrategySection(NamedSection):
    """The algorithm that runs."""

    name: str = "fedweit"
    """Name of the algorithm (fcl list)."""
    local_only: bool = False
    """Run the same algorithm without communication: clients learn alone."""


class ScenarioSection(NamedSection):
    """The clients, their tasks, and the order of the tasks."""

    name: str = ""
    """The way in which tasks are made, by default as suits the data (fcl list)."""
    clients: int = Field(0, ge=0)
    """Number of clients; 0 for as many as there are nodes, or for what suits."""
    tasks: int = Field(0, ge=0)
    """Tasks in each client's stream; hidden concepts in the scenario concepts; 0 for
    what suits the scenario, and in a simulation the folders of local data."""
    classes_per_task: int = Field(0, ge=0)
    """Classes in a task; 0 for the scenario's default. With local data: the most that
    any task has; with first_task_classes: those of each later task."""
    valid_fraction: float = Field(0.15, ge=0, lt=1)
    """Fraction of a task's training samples that is held out for validation; with 0
    nothing tells when training stagnates, and the learning rate is constant."""
    max_train_per_class: int = Field(0, ge=0)
    """Training samples of each class for all clients together; 0 for all there are."""
    max_test_per_class: int = Field(0, ge=0)
    """Test samples of each class for all clients together; 0 for all there are."""
    joint: bool = False
    """Train on the data of all tasks in every round: the multi-task bound."""
    joined: str = ""
    """Rounds that were over when each client joined, such as '0,0,15'; empty for none.
    A client counts its own tasks from then on; local data only."""

    sat_out: str = ""
    """Clients and tasks that are none of their own, such as '2:3,0:4': they had no data
    for it then, and count their own tasks without it; local data only."""

    @property
    def tasks_sat_out(self) -> frozenset[tuple[int, int]]:
        """The pairs of client and task; empty if the text is no list of pairs."""
        pairs = [_counts(pair.replace(":", ",")) for pair in _listed(self.sat_out)]
        if any(len(pair) != 2 for pair in pairs):
            return frozenset()
        return frozenset((client, task) for client, task in pairs)

    @property
    def joined_after(self) -> tuple[int, ...]:
        """The rounds by client; empty if all clients are there from the start."""
        return _counts(self.joined)


class DataSection(Frozen):
    """The data sets, or the form of local data."""

    datasets: str = ""
    """Names of data sets, separated by commas; empty for what suits the strategy."""
    root: str = ""
    """Folder with data sets, by default $FCL_DATA or ./data."""
    class_names: str = ""
    """All classes, separated by commas, in the order of a single head; local data
    only, where clients name theirs if there are none (model.growing_head)."""
    labels: LookAlikes = "refuse"
    """Class names that look alike, such as Cat and cat, or 1 and 1.0: refuse them,
    merge them to one class, or keep them apart; local data only."""
    columns: str = ""
    """Columns of numbers of all clients' tables, separated by commas; empty for any.
    Local data only."""
    word_vectors: str = ""
    """File of word vectors for text; empty to train some on the training texts."""
    public_fraction: float = Field(0.1, ge=0, lt=1)
    """Fraction of each class's training samples that only the server has, in the
    scenario class-incremental."""
    public_dataset: str = ""
    """Data set that the server has instead, in the scenario class-incremental."""
    public_path: str = ""
    """File of labelled samples on the server, or folder of images, with local data."""
    normalise: str = "model"
    """The numbers by which pixels in [0, 1] are standardized: model for the mean and
    deviation that a pre-trained network says, and fixed for all others; fixed for (x -
    0.5) / 0.25; data for those of the clients' first training samples; or both as
    numbers, one or one a channel, such as '0.5,0.5,0.4/0.25'."""

    @property
    def pixel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """The mean and deviation of pixels by channel; None without numbers."""
        try:
            mean, deviation = (
                tuple(map(float, part.split(","))) for part in self.normalise.split("/")
            )
        except ValueError:
            return None
        if not all(map(math.isfinite, (*mean, *deviation))) or min(deviation) <= 0:
            return None
        return mean, deviation

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the data sets, in the order of the setting."""
        return _listed(self.datasets)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all data sets, the server's own last."""
        return (*self.names, *filter(None, [self.public_dataset]))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the setting."""
        return _listed(self.class_names)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The sorted names of the columns."""
        return tuple(sorted(_listed(self.columns)))


class ModelSection(NamedSection):
    """The network."""

    name: str = ""
    """Name of the network, by default what suits the data (fcl list)."""
    head: Literal["", "multi", "single"] = ""
    """One head for each task, or a single one over all classes; empty for what suits
    the scenario."""
    growing_head: bool = False
    """Let a single head grow with the classes, in the scenario class-incremental, or
    with local data, where clients name them: losses and predictions know none of later
    tasks."""
    places: int = Field(100, ge=2)
    """Most classes of a single head that grows with those that clients name."""
    mask_logits: bool = False
    """Let a single head predict no labels but those of the client's own samples of the
    test's task, or of the hidden concept; training is as without."""
    mask_loss: bool = False
    """Together with mask_logits: losses know no labels but those of the client's
    samples (restricted softmax; FedRS, Li and Zhan, KDD 2021, with alpha = 0)."""
    num_features: int = Field(0, ge=0)
    """Numbers in a sample of tabular data; 0 for those of the data set. With local
    texts: numbers in a word vector."""


class TrainingSection(Frozen):
    """Local training on a client."""

    epochs: int = Field(1, ge=1)
    """Local epochs in a round."""
    batch_size: int = Field(0, ge=0)
    """Samples in a training step; 0 for what suits the model."""
    learning_rate: float = Field(0.0, ge=0)
    """Learning rate at the start of a task; 0 for what suits the model with Adam."""
    lr_patience: int = Field(5, ge=0)
    """Learning-rate patience: epochs without improvement before the rate is divided by
    three; 0 for a constant rate, or that of lr_schedule."""
    lr_schedule: Literal["", "cosine", "step"] = ""
    """The fall of the learning rate over all epochs of each task, of the whole run
    where concepts are hidden: cosine, from the start to 0; or in steps; empty for
    neither."""
    lr_steps: str = ""
    """Fractions of a task, with lr_schedule step, after which the rate is multiplied by
    lr_factor, such as '0.7,0.9'."""
    lr_factor: float = Field(0.1, gt=0, lt=1)
    """The factor of the rate at each of lr_steps."""
    early_stopping_patience: int = Field(0, ge=0)
    """Epochs without improvement that end a round's training early; 0 for never."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """The optimizer of a training step; sgd needs a learning rate."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of sgd; kept between the rounds of a task."""
    nesterov: bool = False
    """Nesterov's form of the momentum of sgd."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay: how many times a parameter is added to its own gradient."""
    balance: Literal["none", "weights", "batches"] = "none"
    """The remedy for classes of different sizes: weights for the loss, by inverse
    class frequency; or batches with as many samples of each class."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 for mixed precision in training steps; parameters, updates and tests are
    float32 in any case."""
    augment: str = ""
    """Augmentation of images in training steps, in this order, separated by commas:
    flip (left and right), crop (shifted by up to an eighth), colour, cutout; empty for
    none."""
    count_multiply_adds: bool = False
    """Count what clients compute in training: matrix products, convolutions and
    attention of PyTorch; takes some milliseconds a step."""
    device: str = "auto"
    """auto, cpu, or a torch device name."""
    threads: int = Field(1, ge=1)
    """CPU threads of a client, and in a simulation of the server; results repeat
    exactly only with 1."""

    @property
    def step_places(self) -> tuple[float, ...]:
        """The fractions in ``lr_steps``; empty if it is no such list."""
        places = _numbers(self.lr_steps)
        ascending = list(places) == sorted({*places})
        inside = all(0 < place < 1 for place in places)
        return places if ascending and inside else ()

    @property
    def transforms(self) -> tuple[str, ...]:
        """The names in ``augment``."""
        return _listed(self.augment)


LEAST_SUMMANDS = 3
"""The least clients of a sum: a sum of two shows each client the other's summand."""

MOST_LOST = 0.9
"""The largest share of clients that collude or drop out in secure aggregation."""


LEVELS: Final = ("int8", "int4", "ternary")
"""Types on the wire that round to levels."""

ANSWER_MEASURES: Final = ("exact-match", "rouge-l")
"""The measures of the answers to instructions."""


class FederationSection(Frozen):
    """Rounds, and what the server accepts."""

    rounds_per_task: int = Field(0, ge=0)
    """Communication rounds for each task; of the whole run where concepts are hidden;
    0 for what suits the scenario."""
    rounds_by_task: str = ""
    """Rounds of the first tasks where they are others than rounds_per_task, such as
    '5,5,12'."""
    patience: int = Field(0, ge=0)
    """Rounds in a row without a lower mean of the clients' validation losses after
    which a task gets its last round, before it has had all; 0 for never."""
    evaluate_every: int = Field(0, ge=0)
    """Rounds between evaluations; 0 for the end of each task, or for what suits."""
    evaluate_before_aggregation: bool = True
    """Evaluate also what each client has trained itself, before the aggregation, where
    clients predict with the aggregated model and all take part in every round."""
    per_class: bool = False
    """Ask clients with their accuracies how many test samples of each class there are,
    were answered rightly, and were given as an answer: for balanced accuracy and macro
    F1. This shows which classes a client has."""
    measure: str = "exact-match"
    """Score of an answer to an instruction, which stands as its accuracy: exact-match,
    1 if greedy decoding writes the right tokens and 0 otherwise; or rouge-l, from 0 to
    1, of the text that it writes, which takes longer. One for all data sets, or one for
    each, separated by commas."""
    client_fraction: float = Field(1.0, gt=0, le=1)
    """Client fraction: the fraction of the clients that take part in a round."""
    min_updates: int = Field(0, ge=0)
    """Usable updates that a round needs; 0 for half of its participants, or for those
    of the quorum where they are fewer."""
    max_attempts: int = Field(3, ge=1)
    """The most attempts at a round with too few updates, or at a failing client."""
    timeout: float = Field(3600.0, gt=0)
    """Seconds to wait for a round's replies, or for clients to connect."""
    grace: float = Field(60.0, ge=0)
    """Seconds that rounds wait for a client that was there and has vanished; once for
    each time that it vanishes."""
    quorum: float = Field(1.0, gt=0, le=1)
    """Fraction of the clients asked whose replies are enough to close a round; 1 for
    all. A client that is late again and again is asked less often."""
    deadline_factor: float = Field(0.0, ge=0)
    """The wait of a round with its quorum for the others, in times that the quorum
    took; 0 for not at all."""
    max_update_norm: float = Field(1000.0, ge=0)
    """Largest norm of an update, as a multiple of the norm of the server's weights; 0
    for any."""
    aggregation: Rule = "mean"
    """The rule by which updates are combined: their mean; the median or trimmed-mean
    of each number; the geometric-median of whole updates; or the mean of those that
    krum selects."""
    hostile_fraction: float = Field(0.2, gt=0, lt=0.5)
    """Fraction of the updates that is taken to be hostile, rounded up: cut off at each
    end by trimmed-mean, left out by krum."""
    clip_to_median: float = Field(0.0, ge=0)
    """Largest norm of an update's change, as a multiple of the median norm of the
    round's changes; 0 for any."""
    weighting: Weighting = "examples"
    """The weight of a client: the examples that it claims, or the same for all that
    have any."""
    examples_limit: float = Field(0.0, ge=0)
    """Most examples that a client counts by, as a multiple of the round's median; of
    sums, that a task counts by, as a multiple of all tasks'; at least 1, or 0 for
    any."""
    attack: Attack = ""
    """The attack of hostile clients, in a simulation in one process: turn the change
    round and claim examples (sign-flip), send noise, turn it round ten times as long
    (scaling), learn wrong labels (label-flip), claim examples (counts) or send noise
    for adapters; empty for nothing."""
    attackers: int = Field(0, ge=0)
    """The number of hostile clients: the last ones."""
    wire_dtype: Literal["float32", "float16", "bfloat16", "int8", "int4", "ternary"] = (
        "float32"
    )
    """The precision of float32 tensors on the wire. By 255, 15 or 3 levels (int8, int4,
    ternary): models as the difference to what the other side has, adapters and finished
    networks as they are, and the rest exactly (docs/explain/wire.md)."""
    error_feedback: bool = True
    """Add what rounding to levels takes from a difference to the next one; without it
    differences are rounded at random."""
    secure_aggregation: bool = False
    """Show the server the sum of the updates alone, where the strategy needs no more
    (docs/explain/protections.md)."""
    secure_threshold: float = Field(0.67, ge=0.51, le=1)
    """Fraction of a round's clients, three at least, without which the masks of secure
    aggregation cannot be taken off; the others may drop out."""
    secure_collusion: float = Field(0.2, ge=0, le=MOST_LOST)
    """Fraction of a round's clients that may show the server all that they know, and
    let it learn no more than the sum over the others; with up to 50 clients in a round
    that holds for any number below the threshold. With those who may drop out 0.9 at
    most."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The measure of all data sets, or of each in their order."""
        return _listed(self.measure)

    @property
    def listed_rounds(self) -> tuple[int, ...]:
        """The rounds of the first tasks; empty if all have ``rounds_per_task``."""
        return _counts(self.rounds_by_task)

    def updates_needed(self, participants: int) -> int:
        """Count the usable updates that a round needs."""
        return self.min_updates or max(1, share(min(0.5, self.quorum), participants))

    def sum_threshold(self, clients: int) -> int:
        """Count how many of a round's clients secure aggregation needs."""
        return max(LEAST_SUMMANDS, share(self.secure_threshold, clients))

    def colluders(self, clients: int) -> int:
        """Count how many of a round's clients may collude in secure aggregation."""
        return clients - share(1 - self.secure_collusion, clients)


class AsynchronousSection(Frozen):
    """Training without rounds: each update counts when it arrives."""

    enabled: bool = False
    """Every client goes through its tasks at its own pace."""
    mixing: float = Field(0.6, gt=0, le=1)
    """The weight of an update in the server's model, if it is not stale."""
    staleness_exponent: float = Field(0.5, ge=0)
    """Exponent by which stale updates count less; 0 for not at all."""
    simulated_durations: str = ""
    """Duration of each client's training in simulated time, such as '1,1,1,4'; empty
    for real time. Also in synchronous runs."""

    @property
    def durations(self) -> tuple[float, ...]:
        """The simulated durations by client; empty if they are real."""
        durations = _numbers(self.simulated_durations)
        return durations if all(0 < time < math.inf for time in durations) else ()


class RunSection(Frozen):
    """The run itself."""

    seed: int = Field(0, ge=0)
    """Seed of all random number generators."""
    title: str = ""
    """The name of the run in tables; empty for the strategy's name."""
    id: str = ""
    """The name under which clients keep the state of this run; empty for its number."""
    output: str = ""
    """Folder for the results; empty for a new one under runs/."""
    resume: bool = False
    """Resume the run in the output folder, after its last finished round."""
    client_state: str = "context"
    """The place of clients' states: context (in memory), or a folder."""
    keep_clients: Literal["auto", "true", "false"] = "auto"
    """Keep the clients' states in the folder of a simulation that is over, with which
    fcl predict and fcl export-model work; auto: at most 256 MB, and none in a study."""
    keep_versions: str = Field("tasks", pattern=r"tasks|last:[1-9]\d{0,5}")
    """Versions of the model that a real client keeps, and the server: tasks for one
    after each task, last:5 for the last five of these; the newest and the best stay."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port of the server's own machine, 127.0.0.1, at which Prometheus finds /metrics
    while the run goes on; 0 for none."""
    track: str = ""
    """Trackers that get the run's numbers as it goes on: tensorboard, mlflow, wandb or
    the tracker of another package, separated by commas; empty for nobody."""

    @field_validator("keep_clients", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        # Users write it so, and older files have it so.
        return str(value).lower() if isinstance(value, bool) else value

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names in ``track``."""
        return _listed(self.track)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    """Parse a list of numbers; empty if a part is no number."""
    try:
        return tuple(map(float, _listed(text)))
    except ValueError:
        return ()


def _counts(text: str) -> tuple[int, ...]:
    """Parse a list of whole numbers from 0; empty if a part is no such number."""
    parts = _listed(text)
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


class PrivacySection(Frozen):
    """Differential privacy: clipping, noise, and the budget."""

    unit: Literal["none", "client", "example"] = "none"
    """Privacy unit: what differential privacy hides. client: whatever a client's
    training data are; example: whether one of them is there; none: nothing."""
    noise_multiplier: float = Field(0.0, ge=0)
    """Standard deviation of the Gaussian noise that a client adds, as a multiple of
    clip; above 0 wherever there is a privacy unit."""
    clip: float = Field(1.0, gt=0)
    """Largest Euclidean norm: of the difference that a client sends, or of an example's
    gradient."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The delta at which epsilon is stated."""
    epsilon: float = Field(0.0, ge=0)
    """Privacy budget: the epsilon that no client's data may exceed; 0 for any."""
    observer: Literal["server", "clients"] = "server"
    """The observer from whom a client is hidden within the budget: the server, which
    sees each update, or other clients, who see means of updates."""
    scores: bool = True
    """Ask clients for accuracies on their test data: exact numbers, which epsilon does
    not cover."""


# ---- all sections together


Wrong: TypeAlias = tuple[str, object, str]
"""Key, value and expectation, as `core.errors.config_error` takes them."""

COUNTS: Final = (
    Counts("training.momentum", "training.optimizer", ("sgd",)),
    Counts("training.nesterov", "training.momentum"),
    Counts("training.lr_steps training.lr_factor", "training.lr_schedule", ("step",)),
    Counts("model.mask_loss", "model.mask_logits", (True,)),
    Counts(
        "federation.hostile_fraction",
        "federation.aggregation",
        ("trimmed-mean", "krum"),
    ),
    Counts("federation.error_feedback", "federation.wire_dtype", LEVELS),
    Counts(
        "federation.secure_threshold federation.secure_collusion",
        "federation.secure_aggregation",
        (True,),
    ),
    Counts(
        "asynchronous.mixing asynchronous.staleness_exponent",
        "asynchronous.enabled",
        (True,),
    ),
    Counts(
        "privacy.clip privacy.delta privacy.epsilon privacy.observer",
        "privacy.unit",
        ("client", "example"),
    ),
)
"""The settings that count only with another one. Elsewhere they have their defaults."""

FORMAT: Final = 3
"""The format of a run's ``config.toml``; a user's own file needs no number."""


class RunConfig(Frozen):
    """One run: with the same values it gives the same numbers.

    ``--set``, ``--run-config`` and messages write a key as ``section.key``. A file has
    a table for each section.
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
        found = chain(self._of_updates(), self._of_training(), self._without_effect())
        for key, value, expected in found:
            raise ValueError(str(config_error(key, value, expected)))
        return self

    def must_be(
        self, keys: str, why: str, value: Scalar | None = None
    ) -> Iterator[Wrong]:
        """Find the settings that have another value than they must have.

        Args:
            keys: settings by ``section.key``, separated by spaces.
            why: end of the sentence of a refusal.
            value: value that they must have; None for their defaults.
        """
        for key in keys.split():
            section, _, leaf = key.partition(".")
            usual = DEFAULTS[key] if value is None else value
            if (present := getattr(getattr(self, section), leaf)) != usual:
                shown = f"{usual:g}" if isinstance(usual, float) else as_set(usual)
                yield key, present, f"{shown if usual != '' else 'none'} {why}"

    def _without_effect(self) -> Iterator[Wrong]:
        for rule in COUNTS:
            section = getattr(self, rule.where.partition(".")[0])
            if not rule.holds(section):
                yield from self.must_be(rule.keys, str(rule))
        if self.federation.quorum == 1:
            why = "unless federation.quorum is below 1, without which it has no effect"
            yield from self.must_be("federation.deadline_factor", why)

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
        schedule = training.lr_schedule
        if schedule:
            why = f"with training.lr_schedule {schedule!r}, which sets all rates"
            yield from must_be("training.lr_patience federation.patience", why, 0)
        if schedule == "step" and not training.step_places:
            expected = "ascending fractions between 0 and 1, such as '0.7,0.9'"
            yield "training.lr_steps", training.lr_steps, expected
        unit, noise = privacy.unit, privacy.noise_multiplier
        if (unit != "none") != (noise > 0):
            expected = "0" if unit == "none" else "a number above 0"
            expected += f", as privacy.unit is {unit!r}"
            yield "privacy.noise_multiplier", noise, expected
        if unit == "example":
            hidden = "with privacy.unit 'example'"
            why = f"{hidden}, which clips the gradient of each example"
            yield from must_be("training.precision", why)
            why = f"{hidden}, since how often a class occurs tells of single examples"
            yield from must_be("training.balance", why)

    @property
    def title(self) -> str:
        """The name of the run in tables."""
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

        The setting ``config`` names a user's own file, other settings a run's file.

        Raises:
            ConfigError: a key or a value is refused, or the file has another format.
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
        """Copy the configuration with other values, as `from_settings` takes them."""
        return self.of({**self.flat(), **long_keys(settings)})

    def flat(self) -> dict[str, Scalar]:
        """List all values by ``section.key``, also of the parameters that are set."""
        values: dict[str, Scalar] = {}
        for name in type(self).model_fields:
            section: Frozen = getattr(self, name)
            for key in type(section).model_fields:
                if key != "params":
                    values[f"{name}.{key}"] = getattr(section, key)
            if isinstance(section, NamedSection):
                values |= {f"{name}.{key}": v for key, v in section.params.items()}
        return values

    def to_file(self) -> str:
        """Write the file that `read` reads."""
        return f"{KEY} = {FORMAT}\n\n{self.to_toml()}"

    def to_toml(self, prefix: str = "") -> str:
        """Write all values as TOML: a table for each section, behind ``prefix``."""
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
    field: FieldInfo = kind.model_fields[leaf]
    return field


def _plain(value: object) -> object:
    """Convert a value of NumPy, and a list of names, or of several numbers, to text."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.item() if value.ndim == 0 else value.tolist()
    parts: Sequence[object] = value if isinstance(value, list | tuple) else ()
    names = bool(parts) and all(type(part) is str for part in parts)
    if names or (len(parts) > 1 and {*map(type, parts)} <= {int, float}):
        return ",".join(map(str, parts))
    return value


def _short_names() -> dict[str, str]:
    names = {
        key: f"{section}.{key}"
        for section, field in RunConfig.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
        if key not in {"name", "params"}
    }
    return names | {
        "dataset": "data.datasets",
        "data_root": "data.root",
        "rounds": "federation.rounds_per_task",
    }


SHORT: Final[Mapping[str, str]] = MappingProxyType(_short_names())
"""Short names of settings, which no two sections share."""


def long_keys(settings: Mapping[str, object]) -> dict[str, object]:
    """Name settings by ``section.key``; see `RunConfig.from_settings`."""
    values: dict[str, object] = {}
    for key, value in settings.items():
        field = RunConfig.model_fields.get(key)
        if "." in key:
            values[key] = value
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
            values[SHORT[key]] = value
        elif isinstance(value, Mapping):
            values |= flatten({key: value})
        elif key == "asynchronous":
            values["asynchronous.enabled"] = value
        elif "name" in field.annotation.model_fields:  # type: ignore[union-attr]
            values[f"{key}.name"] = value
        else:
            raise config_error(key, value, "a mapping, as this is a section")
    return values


_OPEN = (
    "federation.rounds_per_task",
    "scenario.clients",
    "scenario.tasks",
    "scenario.classes_per_task",
    "training.batch_size",
    "training.learning_rate",
)
"""Settings whose default 0 stands for a value that suits the run."""


def check_not_zero(settings: Mapping[str, object]) -> None:
    """Refuse a user's 0 for a setting whose default 0 leaves it open."""
    for key in _OPEN:
        if key in settings and settings[key] == 0:
            raise config_error(
                key, settings[key], "more than 0, or nothing for what suits"
            )


def refuse_attack(config: RunConfig) -> None:
    """Refuse a run with hostile clients."""
    attack = config.federation.attack
    if attack:
        expected = "none, as only a simulation in one process has hostile clients"
        raise config_error("federation.attack", attack, expected)
