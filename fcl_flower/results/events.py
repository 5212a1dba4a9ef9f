"""The types of a run's record: its events, and the contents of its documented files."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from fcl_flower.core.diagnostics import Diagnostic, Index
from fcl_flower.core.types import Evaluation, TaskStage

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BytesOfKind: TypeAlias = dict[str, Count]
Scalars: TypeAlias = dict[str, float]
ClassHolders: TypeAlias = Mapping[str, Collection[int]]
"""The clients that have named each class of a single head, by the class's name."""

EPSILON = "epsilon"
"""Metric: the privacy cost of the client's examples so far, where they are the unit."""
LABEL_EPSILON = "label_epsilon"
"""Metric: the privacy cost so far of noised statistics of the client's labels."""
MULTIPLY_ADDS = "multiply_adds"
"""Metric: the multiply-adds of a client's training in a round, if counted."""


class _Noted(BaseModel):
    """A line, a file or an event; keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# ---- the description of a run


@dataclass(slots=True)
class Traffic:
    """Bytes of the messages of one or several rounds, by kind of payload group.

    Nominal bytes are the papers' count: 4 for each non-zero parameter, none for
    indices, masks and headers (FedWeIT, table 2).
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    nominal_up: int = 0
    nominal_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Add the bytes of ``other``."""
        self.up.update(other.up)
        self.down.update(other.down)
        self.nominal_up += other.nominal_up
        self.nominal_down += other.nominal_down

    def by_kind(self) -> dict[str, BytesOfKind]:
        """List the bytes by direction and kind, in alphabetical order."""
        return {
            "up": dict(sorted(self.up.items())),
            "down": dict(sorted(self.down.items())),
        }


class TaskInfo(_Noted):
    """A task, or hidden concept, of a client; local data have only its name."""

    name: str
    dataset: str = ""
    group: str | int | None = None
    class_names: list[str] = []
    train: Count = 0
    valid: Count = 0
    test: Count = 0


class ScenarioInfo(_Noted):
    """The content of ``scenario.json``: the tasks of every client in their order."""

    name: str
    seed: int
    datasets: list[str]
    classes_per_task: int | None = None
    clients: Annotated[list[list[TaskInfo]], Field(min_length=1)]

    @property
    def concepts(self) -> list[str]:
        """The names of the hidden concepts; every client has all of them."""
        return [task.name for task in self.clients[0]]


class Hidden(_Noted):
    """The order in which clients get hidden concepts (`scenarios.concept_stream`)."""

    window: int
    mean_duration: Count
    reveal_ids: bool = False


class Environment(_Noted):
    """The time (ISO 8601), the versions and the machine of a run."""

    date: str | None = None
    versions: dict[str, str | None] = {}
    commit: str | None = None
    machine: str | None = None

    def describe(self) -> str:
        """List what is known in one line, which is empty if nothing is."""
        versions = [
            f"{name} {number}" for name, number in self.versions.items() if number
        ]
        commit = self.commit and f"commit {self.commit}"
        parts = [self.date, *versions, commit, self.machine]
        return ", ".join(" ".join(part.split()) for part in parts if part)


class About(_Noted):
    """The description of a run before its first round, or after it was extended.

    Attributes:
        rounds: number of rounds of each task that ``rounds_by_task`` does not list.
        rounds_by_task: numbers of rounds of the first tasks, where they differ.
        sat_out: by client the tasks that are not its own: tasks before it joined, and
            tasks for which it had no data.
    """

    label: str
    strategy: str
    local_only: bool
    params: dict[str, Any]
    training: dict[str, Any] = {}
    scenario: str
    dataset: str
    model: str
    seed: int
    clients: Annotated[int, Field(ge=1)]
    tasks: Annotated[int, Field(ge=1)]
    rounds: int
    total_rounds: int
    rounds_by_task: list[int] = []
    sat_out: dict[int, list[int]] = {}
    mode: str = "synchronous"
    hidden: Hidden | None = None
    command: str | None = None
    counterpart: str | None
    single_task: bool = False
    environment: Environment = Environment()

    @property
    def incremental(self) -> bool:
        """Whether each task brings new classes of one head, in one order for all."""
        return self.scenario == "class-incremental"

    def own_tasks(self, client: int) -> list[int]:
        """List a client's own tasks."""
        out = self.sat_out.get(client, ())
        return [task for task in range(self.tasks) if task not in out]


# ---- its results


class Measures(_Noted):
    """The measures of all evaluations of one kind; None is unknown.

    See `results.measures`.
    """

    average_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    learning_accuracy: float | None
    average_incremental_accuracy: Fraction | None = None
    sample_accuracy: list[Fraction | None] = []
    accuracy_matrix: list[list[Fraction | None]] = []
    client_accuracy: list[list[list[Fraction | None]]] = []


class ClassResult(_Noted):
    """The scores of a class over all clients.

    The precision is None if no answer named the class.
    """

    name: str
    tested: Annotated[int, Field(ge=1)]
    recall: Fraction
    precision: Fraction | None
    f1: Fraction


class Discovery(_Noted):
    """The server's separation of hidden concepts (Jiang et al., 2025).

    Attributes:
        ari: adjusted Rand index against the concepts, mean over rounds.
        ari_least: the smallest such index.
        perfect_rounds: fraction of the rounds in which the index is 1.
        effectiveness: fraction of the updates that went into the model from which
            their client had started.
        models: number of models that were ever updated.
    """

    ari: Index | None = None
    ari_least: Index | None = None
    perfect_rounds: Fraction | None = None
    effectiveness: Fraction | None = None
    models: int | None = None


class Privacy(_Noted):
    """The unit that differential privacy hides, and its cost so far."""

    unit: str
    noise_multiplier: Annotated[float, Field(ge=0)]
    clip: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    observer: str
    scores: bool = True
    budget: Annotated[float, Field(ge=0)]
    epsilon: Annotated[float, Field(ge=0)]
    epsilon_server: float = 0.0
    epsilon_clients: float = 0.0
    by_client: dict[int, float] = {}
    simulated_noise: bool = False
    stopped: str = ""


class Summary(About, Measures):
    """The content of ``summary.json``: a run and its results; None is not measured."""

    clock: float | None = None
    honest_accuracy: float | None = None
    inferred_task_accuracy: Fraction | None = None
    untrained_client_tasks: Count | None = None
    late_replies: dict[int, int] = {}
    left_out: dict[int, str] = {}
    before_aggregation: Measures | None = None
    bytes_up: Count
    bytes_down: Count
    nominal_bytes_up: Count
    nominal_bytes_down: Count
    bytes_by_kind: dict[str, BytesOfKind]
    model_bytes: Count
    balanced_accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    per_class: list[ClassResult] = []
    token_loss: float | None = None
    token_loss_matrix: list[list[float | None]] = []
    concepts: Discovery = Discovery()
    label_epsilon: dict[int, float] = {}
    multiply_adds: Count | None = None
    privacy: Privacy | None = None
    remarks: dict[str, str] = {}
    peak_memory: Count | None = None
    seconds: float

    def content(self) -> dict[str, Any]:
        """Return the content of the file: every key that was set."""
        return self.model_dump(exclude_unset=True)


class Progress(_Noted):
    """The content of ``progress.json``, with the time at which it was written.

    Attributes:
        left: seconds until the end, as far as they can be foretold.
        at: seconds since 1970.
    """

    round: Count
    rounds: Annotated[int, Field(ge=1)]
    task: Count
    tasks: Annotated[int, Field(ge=1)]
    clients_done: Count
    clients: Count
    working: list[int] = []
    seconds: float
    left: float | None = None
    at: float = 0.0


# ---- events


class Begun(_Noted):
    """The beginning of a run, with all that its measures depend on.

    Attributes:
        about: description of the run.
        attackers: number of hostile clients, which are the last ones.
        joint: whether every round trains on all tasks.
        remarks: remarks for the reader, by topic.
        counts_classes: whether clients count their answers by class.
        class_names: classes of a single head.
        class_holders: clients that have named each class, if clients name them.
    """

    about: About
    attackers: int = 0
    joint: bool = False
    remarks: dict[str, str] = {}
    counts_classes: bool = False
    class_names: list[str] = []
    class_holders: dict[str, list[int]] = {}


class Extended(_Noted):
    """More tasks, clients or classes after a round; ``begun`` holds from then on."""

    round: int
    begun: Begun


class Trained(_Noted):
    """A finished round; an asynchronous update counts as a round.

    Attributes:
        replies: scalars of each client whose update was aggregated.
        failed: reason for each client whose update, or evaluation, was not used.
        traffic: bytes of the round, and of an evaluation after it.
        diagnostics: the strategy's reports; numbers are finite.
        stages: stage of each client whose update was aggregated, in its own count of
            rounds.
        timing: ``clock`` (simulated time), and ``staleness`` and ``weight`` of an
            asynchronous update.
        late: clients whose reply was late, with the simulated time at which each is
            ready for another round; 0 without simulated time.
        state_lost: clients that reported the loss of their private state, before any
            aggregated update.
    """

    round: int
    task: int
    replies: dict[int, Scalars]
    failed: dict[int, str]
    traffic: Traffic
    diagnostics: dict[str, float | Annotated[Diagnostic, Field(discriminator="kind")]]
    stages: dict[int, TaskStage]
    timing: Scalars
    seconds: float = 0.0
    late: dict[int, float] = {}
    state_lost: list[int] = []

    @field_serializer("traffic")
    def _sorted(self, traffic: Traffic) -> dict[str, Any]:
        return {
            **traffic.by_kind(),
            "nominal_up": traffic.nominal_up,
            "nominal_down": traffic.nominal_down,
        }

    @property
    def loss(self) -> float | None:
        """The training loss, mean over the clients that have one."""
        return self._mean("loss")

    @property
    def valid_loss(self) -> float | None:
        """The validation loss, mean over the clients that have one."""
        return self._mean("valid_loss")

    @property
    def valid_accuracy(self) -> float | None:
        """The validation accuracy, mean over the clients that have one."""
        return self._mean("valid_accuracy")

    def line(self) -> dict[str, Any]:
        """Sum up the round as a line of ``rounds.jsonl``."""
        numbers = {k: v for k, v in self.diagnostics.items() if isinstance(v, float)}
        return {
            "round": self.round,
            "task": self.task,
            "clients": sorted(self.replies),
            "failed": sorted(self.failed),
            "reasons": self.failed,
            "loss": self.loss,
            "valid_loss": self.valid_loss,
            "valid_accuracy": self.valid_accuracy,
            "bytes_up": self.traffic.by_kind()["up"],
            "bytes_down": self.traffic.by_kind()["down"],
            "nominal_bytes_up": self.traffic.nominal_up,
            "nominal_bytes_down": self.traffic.nominal_down,
            "seconds": self.seconds,
            **self.timing,
            **({"diagnostics": numbers} if numbers else {}),
        }

    def _mean(self, name: str) -> float | None:
        values = [reply[name] for reply in self.replies.values() if name in reply]
        return sum(values) / len(values) if values else None


class _Evaluated(_Noted):
    round: int
    task: int
    scores: dict[int, Evaluation]


class Evaluated(_Evaluated):
    """An evaluation after learning a task, with the models that clients would use."""


class EvaluatedBefore(_Evaluated):
    """An evaluation, before the aggregation, of the model that each client trained."""


class Finished(_Noted):
    """The end of a run."""

    summary: Summary


Event: TypeAlias = Begun | Extended | Trained | Evaluated | EvaluatedBefore | Finished
