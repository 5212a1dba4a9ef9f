"""What the files of a run folder contain, line by line and key by key."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
Kinds = dict[str, Bytes]


class _Record(BaseModel):
    """A line or file of the folder; keys that no report needs may be there too."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BytesByKind(_Record):
    """Bytes of the whole run by kind of knowledge, both directions."""

    up: Kinds
    down: Kinds


class Summary(_Record):
    """``summary.json``: what the run was and what came out. None: not measured."""

    label: str
    strategy: str
    isolated: bool
    twin: str | None
    scenario: str
    dataset: str
    model: str
    seed: int
    clients: Annotated[int, Field(ge=1)]
    tasks: Annotated[int, Field(ge=1)]
    rounds: int
    total_rounds: int
    average_accuracy: float | None
    forgetting: float | None
    backward_transfer: float | None
    learning_accuracy: float | None
    accuracy_matrix: list[list[Fraction | None]]
    client_accuracy: list[list[list[Fraction | None]]]
    bytes_up: Bytes
    bytes_down: Bytes
    paper_bytes_up: Bytes
    paper_bytes_down: Bytes
    bytes_by_kind: BytesByKind
    model_bytes: Bytes
    seconds: float
    params: dict[str, Any]
    training: dict[str, Any] = {}
    notes: dict[str, str] = {}
    command: str | None = None


class Round(_Record):
    """One line of ``rounds.jsonl``."""

    round: int
    task: int
    clients: list[int]
    failed: list[int]
    loss: float | None
    valid_accuracy: float | None
    bytes_up: Kinds
    bytes_down: Kinds
    paper_bytes_up: Bytes
    paper_bytes_down: Bytes
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

    ``same_classes`` is the fraction of the new task's classes that it has too.
    """

    client: int
    task: int
    task_name: str
    overlap: Annotated[float, Field(allow_inf_nan=False)]
    chosen: bool
    same_classes: Fraction


class Overlap(_Record):
    """The finished tasks that one client's new task was compared with."""

    client: int
    task: int
    task_name: str
    candidates: list[Candidate]


class Task(_Record):
    """One task of one client; ``train``, ``valid`` and ``test`` count examples."""

    name: str
    group: str | int | None = None
    class_names: list[str]
    train: Count
    valid: Count
    test: Count


class Scenario(_Record):
    """``scenario.json``: who learns what, in which order."""

    name: str
    seed: int
    datasets: Annotated[list[str], BeforeValidator(_as_list)]
    classes_per_task: int | None = None
    clients: list[list[Task]]
