"""Events of a run, and the contents of its documented files."""

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
"""The clients that have named each class of a single head."""

EPSILON = "epsilon"
"""Metric of an update: what the client's examples have cost so far, where they are the
privacy unit."""
LABEL_EPSILON = "label_epsilon"
"""Metric: what statistics of the client's labels that it noised have cost so far."""
MULTIPLY_ADDS = "multiply_adds"
"""Metric: what the client has computed in the round's training, where it counts."""


class _Noted(BaseModel):
    """A line, a file or an event; keys of other versions may be there too."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# ---- what a run is


@dataclass(slots=True)
class Traffic:
    """Bytes of the messages of a round, or of several, by kind of payload group.

    Nominal bytes are those that the papers count: 4 for each non-zero parameter;
    indices, masks and headers are free (FedWeIT, table 2).
    """

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    nominal_up: int = 0
    nominal_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Count the bytes of ``other`` too."""
        self.up.update(other.up)
        self.down.update(other.down)
        self.nominal_up += other.nominal_up
        self.nominal_down += other.nominal_down


class TaskInfo(_Noted):
    """A task, or hidden concept, of a client; of local data only its name is known."""

    name: str
    dataset: str = ""
    group: str | int | None = None
    class_names: list[str] = []
    train: Count = 0
    valid: Count = 0
    test: Count = 0


class ScenarioInfo(_Noted):
    """``scenario.json``: the tasks of every client in their order."""

    name: str
    seed: int
    datasets: list[str]
    classes_per_task: int | None = None
    clients: Annotated[list[list[TaskInfo]], Field(min_length=1)]

    @property
    def concepts(self) -> list[str]:
        """Names of hidden concepts, of which every client has all."""
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
        """Say what is known in one line; empty if nothing is."""
        versions = [f"{name} {v}" for name, v in self.versions.items() if v]
        commit = self.commit and f"commit {self.commit}"
        known = [self.date, *versions, commit, self.machine]
        return ", ".join(" ".join(one.split()) for one in known if one)


class About(_Noted):
    """A run as it is known before its first round, or before it was extended.

    Attributes:
        rounds: of each task that ``rounds_by_task`` does not list.
        rounds_by_task: of the first tasks, where they differ.
        sat_out: by client the tasks that are none of its own: those before it joined,
            and those for which it had no data.
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
        """List the tasks that a client counts."""
        out = self.sat_out.get(client, ())
        return [task for task in range(self.tasks) if task not in out]


# ---- what came out of it


class Measures(_Noted):
    """Measures of all evaluations of one kind (`results.measures`); None: unknown."""

    average_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    learning_accuracy: float | None
    average_incremental_accuracy: Fraction | None = None
    sample_accuracy: list[Fraction | None] = []
    accuracy_matrix: list[list[Fraction | None]] = []
    client_accuracy: list[list[list[Fraction | None]]] = []


class BytesByKind(_Noted):
    """Bytes of the whole run by kind of payload group, both directions."""

    up: BytesOfKind
    down: BytesOfKind


class ClassResult(_Noted):
    """Scores of a class over all clients; a precision of None: never answered."""

    name: str
    tested: Annotated[int, Field(ge=1)]
    recall: Fraction
    precision: Fraction | None
    f1: Fraction


class Discovery(_Noted):
    """The server's separation of hidden concepts (Jiang et al., 2025).

    Of the adjusted Rand index against the concepts the mean over rounds, the least, and
    the fraction of rounds in which it is 1; the fraction of the updates that went into
    the model which their client had started from; how many models were ever updated.
    """

    ari: Index | None = None
    ari_least: Index | None = None
    perfect_rounds: Fraction | None = None
    effectiveness: Fraction | None = None
    models: int | None = None


class Privacy(_Noted):
    """The unit that differential privacy hides, and the cost so far."""

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
    """``summary.json``: what the run was and what came out; None: not measured."""

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
    bytes_by_kind: BytesByKind
    model_bytes: Count
    balanced_accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    per_class: list[ClassResult] = []
    concepts: Discovery = Discovery()
    label_epsilon: dict[int, float] = {}
    multiply_adds: Count | None = None
    privacy: Privacy | None = None
    remarks: dict[str, str] = {}
    peak_memory: Count | None = None
    seconds: float

    def content(self) -> dict[str, Any]:
        """Give what the file holds: all that the run has something for."""
        return self.model_dump(exclude_unset=True)


class Round(_Noted):
    """A line of ``rounds.jsonl``; means are over the clients that have a value."""

    round: Annotated[int, Field(ge=1)]
    task: Count
    clients: list[int]
    failed: list[int]
    reasons: dict[int, str] = {}
    loss: float | None
    valid_loss: float | None = None
    valid_accuracy: float | None
    bytes_up: BytesOfKind
    bytes_down: BytesOfKind
    nominal_bytes_up: Count
    nominal_bytes_down: Count
    seconds: float
    staleness: float | None = None
    weight: float | None = None
    clock: float | None = None
    diagnostics: Scalars = {}


class Progress(_Noted):
    """``progress.json``: how far a run is; ``at`` which time (seconds since 1970)."""

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
    """The beginning of a run, with what its measures have to know.

    How many of the last clients are hostile; whether every round trains on all tasks;
    remarks by topic; whether clients count their answers by class; the classes of a
    single head; and the clients that have named each, where they do.
    """

    about: About
    attackers: int = 0
    joint: bool = False
    remarks: dict[str, str] = {}
    counts_classes: bool = False
    class_names: list[str] = []
    class_holders: dict[str, list[int]] = {}


class Extended(_Noted):
    """More tasks, clients or classes, after a round: ``begun`` holds from then on."""

    round: int
    begun: Begun


class Trained(_Noted):
    """A finished round; an asynchronous update counts as a round.

    Attributes:
        replies: scalars by client whose update was aggregated.
        failed: reason by client whose update, or whose evaluation, was not used.
        traffic: of the round, including an evaluation after it.
        diagnostics: what the strategy reports; numbers are finite.
        stages: where these clients stood, each in its own count of rounds.
        timing: ``clock`` (simulated time), and ``staleness`` and ``weight`` of an
            asynchronous update.
        late: clients whose reply was not waited for, with the simulated time at which
            they are ready for another round, 0 without any.
        state_lost: clients that told the loss of their private state, before any
            update of theirs that was aggregated.
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
            "up": dict(sorted(traffic.up.items())),
            "down": dict(sorted(traffic.down.items())),
            "nominal_up": traffic.nominal_up,
            "nominal_down": traffic.nominal_down,
        }

    def line(self) -> Round:
        """Sum up the round as ``rounds.jsonl`` has it."""
        numbers = {k: v for k, v in self.diagnostics.items() if isinstance(v, float)}
        return Round(
            round=self.round,
            task=self.task,
            clients=sorted(self.replies),
            failed=sorted(self.failed),
            reasons=self.failed,
            loss=self._mean("loss"),
            valid_loss=self._mean("valid_loss"),
            valid_accuracy=self._mean("valid_accuracy"),
            bytes_up=dict(sorted(self.traffic.up.items())),
            bytes_down=dict(sorted(self.traffic.down.items())),
            nominal_bytes_up=self.traffic.nominal_up,
            nominal_bytes_down=self.traffic.nominal_down,
            seconds=self.seconds,
            **self.timing,
            **({"diagnostics": numbers} if numbers else {}),
        )

    def _mean(self, name: str) -> float | None:
        values = [one[name] for one in self.replies.values() if name in one]
        return sum(values) / len(values) if values else None


class _Evaluated(_Noted):
    round: int
    task: int
    scores: dict[int, Evaluation]


class Evaluated(_Evaluated):
    """An evaluation after learning a task, with the models that clients would use."""


class EvaluatedBefore(_Evaluated):
    """An evaluation of what each client has trained itself, before the aggregation."""


class Finished(_Noted):
    """The end of a run."""

    summary: Summary


Event: TypeAlias = Begun | Extended | Trained | Evaluated | EvaluatedBefore | Finished

EVENTS: dict[str, type[Event]] = {
    "begun": Begun,
    "extended": Extended,
    "trained": Trained,
    "evaluated": Evaluated,
    "evaluated before aggregation": EvaluatedBefore,
    "finished": Finished,
}
"""The events by their names in the journal."""

_NAMES = {kind: name for name, kind in EVENTS.items()}


def to_entry(event: Event) -> tuple[str, int, dict[str, Any]]:
    """Take an event apart: its name, its round (0 where it has none) and the rest."""
    content = event.model_dump(exclude_unset=isinstance(event, Finished))
    return _NAMES[type(event)], content.pop("round", 0), content


def from_entry(name: str, number: int, content: Mapping[str, Any]) -> Event:
    """Put an event together again; a `ValueError` if it is none."""
    return EVENTS[name].model_validate({"round": number, **content})
