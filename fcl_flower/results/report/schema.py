"""What the files of a run folder contain, line by line and key by key."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fcl_flower.results.environment import told
from fcl_flower.results.report.html import numbers


def _total(count: object) -> object:
    """Return the sum where a count is given per class."""
    if isinstance(count, dict):
        return sum(count.values())
    return sum(count) if isinstance(count, list) else count


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_total), Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Index = Annotated[float, Field(ge=-1, le=1)]
BytesOfKind = dict[str, Bytes]
NONE = -1
"""Number of the cluster, or of the concept model, of those that have none."""


class _Record(BaseModel):
    """A line or file of the folder; keys that no report needs may be there too."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BytesByKind(_Record):
    """Bytes of the whole run by kind of payload, both directions."""

    up: BytesOfKind
    down: BytesOfKind


class Hidden(_Record):
    """How clients get data of hidden concepts.

    See `fcl_flower.data.scenarios.plan`.
    """

    window: int
    mean_duration: Annotated[int, Field(ge=0)]
    reveal_ids: bool = False


class Discovery(_Record):
    """How well the server separates hidden concepts; None where it does not."""

    ari: Index | None = None
    ari_least: Index | None = None
    perfect_rounds: Fraction | None = None
    effectiveness: Fraction | None = None
    models: int | None = None


class BeforeAggregation(_Record):
    """Test accuracy of what each client has trained itself; None: not measured."""

    average_accuracy: Fraction | None = None


class Privacy(_Record):
    """What differential privacy hides and what it has cost; `PrivacyDiagnostics`."""

    unit: str
    observer: str
    delta: Annotated[float, Field(gt=0, lt=1)]
    epsilon: Annotated[float, Field(ge=0)]
    budget: Annotated[float, Field(ge=0)]
    noise_multiplier: Annotated[float, Field(ge=0)]
    clip: Annotated[float, Field(ge=0)]
    stopped: str = ""


class Environment(_Record):
    """Under which versions, when (ISO 8601) and on what a run was made."""

    date: str | None = None
    commit: str | None = None
    machine: str | None = None
    versions: dict[str, str | None] = {}

    @property
    def told(self) -> str:
        """Return what is known in one line; empty if nothing is."""
        return told(self.model_dump())


class ClassResult(_Record):
    """How well a class is known, over all clients; precision None: never answered."""

    name: str
    tested: Annotated[int, Field(ge=1)]
    recall: Fraction
    precision: Fraction | None
    f1: Fraction


class Progress(_Record):
    """``progress.json``: how far a run is; ``left``: seconds, None: not known yet."""

    round: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=1)]
    task: Annotated[int, Field(ge=0)]
    tasks: Annotated[int, Field(ge=1)]
    clients_done: Annotated[int, Field(ge=0)]
    clients: Annotated[int, Field(ge=0)]
    working: list[int] = []
    seconds: float
    left: float | None = None
    at: float = 0.0
    """When it was written, in seconds since 1970; 0 if that is not known."""


class Summary(_Record):
    """``summary.json``: what the run was and what came out. None: not measured.

    Of a run under way: what has come out so far, and ``progress``.
    """

    label: str
    strategy: str
    local_only: bool
    counterpart: str | None
    single_task: bool = False
    scenario: str
    dataset: str
    model: str
    seed: int
    clients: Annotated[int, Field(ge=1)]
    tasks: Annotated[int, Field(ge=1)]
    rounds: int
    total_rounds: int
    mode: str = "synchronous"
    clock: float | None = None
    average_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    learning_accuracy: float | None
    accuracy_matrix: list[list[Fraction | None]]
    client_accuracy: list[list[list[Fraction | None]]]
    untrained_client_tasks: Annotated[int, Field(ge=0)] | None = None
    before_aggregation: BeforeAggregation = BeforeAggregation()
    bytes_up: Bytes
    bytes_down: Bytes
    nominal_bytes_up: Bytes
    nominal_bytes_down: Bytes
    bytes_by_kind: BytesByKind
    model_bytes: Bytes
    peak_memory: Bytes | None = None
    multiply_adds: Annotated[int, Field(ge=0)] | None = None
    seconds: float
    params: dict[str, Any]
    training: dict[str, Any] = {}
    hidden: Hidden | None = None
    concepts: Discovery = Discovery()
    privacy: Privacy | None = None
    remarks: dict[str, str] = {}
    environment: Environment = Environment()
    command: str | None = None
    sample_accuracy: list[Fraction | None] = []
    balanced_accuracy: Fraction | None = None
    macro_f1: Fraction | None = None
    per_class: list[ClassResult] = []
    progress: Progress | None = None

    @property
    def steps(self) -> str:
        """Return how long the run was: in rounds, or in updates without any."""
        step = "round" if self.mode == "synchronous" else "asynchronous update"
        return numbers.plural(self.total_rounds, step)

    @property
    def data(self) -> str:
        """Return the data sets and the scenario in words."""
        if not self.dataset:
            return "the clients' local data"
        return f"{self.dataset} ({self.scenario})"

    @property
    def last(self) -> str:
        """Return what the newest accuracies are: ``final``, or not yet."""
        return "final" if self.progress is None else "latest"

    @property
    def ends(self) -> str:
        """Return the verb of a sentence on these."""
        return "ends" if self.progress is None else "is so far"

    @property
    def noun(self) -> str:
        """Return the word for what ``tasks`` counts."""
        return "task" if self.hidden is None else "concept"

    @property
    def full_noun(self) -> str:
        """Return `noun` at its first mention on a page."""
        return "task" if self.hidden is None else "hidden concept"


class Round(_Record):
    """One line of ``rounds.jsonl``."""

    round: int
    task: int
    clients: list[int]
    failed: list[int]
    reasons: dict[int, str] = {}
    loss: float | None
    valid_accuracy: float | None
    bytes_up: BytesOfKind
    bytes_down: BytesOfKind
    nominal_bytes_up: Bytes
    nominal_bytes_down: Bytes
    seconds: float


class Measurement(_Record):
    """One row of ``accuracy.csv``."""

    round: int
    task_learned: int
    client: int
    task: int
    task_name: str
    accuracy: Fraction


class ForeignAdapter(_Record):
    """An adapter of another client and its mean weight ``|alpha|`` over the layers."""

    client: int
    task: int
    task_name: str
    weight: Annotated[float, Field(ge=0)]
    same_group: bool | None = None


class Attention(_Record):
    """The foreign adapters that one client uses for one of its tasks."""

    client: int
    task: int
    task_name: str
    foreign: list[ForeignAdapter]


class Candidate(_Record):
    """A finished task of another client whose adapter a new task could choose.

    ``same_classes`` is the fraction of the new task's classes that it has too; None
    where it is not known.
    """

    client: int
    task: int
    task_name: str
    overlap: Finite
    chosen: bool
    same_classes: Fraction | None


class Overlap(_Record):
    """The finished tasks that one client's new task was compared with."""

    client: int
    task: int
    task_name: str
    candidates: list[Candidate]


class Clustering(_Record):
    """One round of ``concepts.json``: where the server put the model of each client.

    Attributes:
        round: counted from 1.
        clients: that sent a model.
        concept: the hidden concept of each client's data, known to neither side.
        cluster: of each client's model; `NONE`: noise.
        origin: the concept model that it seems to have started from.
        reached: the concept model that it went into, or `NONE`.
        map: two coordinates of it.
        ari: adjusted Rand index of ``cluster`` against ``concept``.
        effectiveness: fraction of the clients whose model went back to its origin.
    """

    round: Annotated[int, Field(ge=1)]
    clients: Annotated[list[int], Field(min_length=1)]
    concept: list[int]
    cluster: list[Annotated[int, Field(ge=NONE)]]
    origin: list[int]
    reached: list[Annotated[int, Field(ge=NONE)]]
    map: list[tuple[Finite, Finite]]
    ari: Index
    effectiveness: Fraction

    @model_validator(mode="after")
    def _one_of_each_for_every_client(self) -> Self:
        for key in ("concept", "cluster", "origin", "reached", "map"):
            if len(getattr(self, key)) != len(self.clients):
                raise ValueError(f"{key} has not one entry for each of the clients")
        return self

    @property
    def clusters(self) -> int:
        """Return how many clusters there are, noise aside."""
        return len({*self.cluster} - {NONE})


class Task(_Record):
    """One task, or hidden concept, of one client.

    ``train``, ``valid`` and ``test`` count examples. Of a task of local data only
    the name is known.
    """

    name: str
    group: str | int | None = None
    class_names: list[str] = []
    train: Count = 0
    valid: Count = 0
    test: Count = 0


class Scenario(_Record):
    """``scenario.json``: the tasks of every client in their order."""

    name: str
    seed: int
    datasets: Annotated[list[str], BeforeValidator(_as_list)]
    classes_per_task: int | None = None
    clients: list[list[Task]]

    @property
    def concepts(self) -> list[str]:
        """Return the names of hidden concepts, of which every client has all."""
        return [task.name for task in self.clients[0]]
