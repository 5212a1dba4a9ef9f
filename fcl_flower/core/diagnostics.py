"""What a strategy has to report beside accuracies: tables, matrices and points."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

NONE = -1
"""Number of the cluster, or of the model, of those that have none."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0)]
NumberOrNone = Annotated[int, Field(ge=NONE)]
Index = Annotated[float, Field(ge=-1, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Diagnostic(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    title: str
    note: str = ""


class Table(_Diagnostic):
    """Rows of a few cells by label, such as one for each task."""

    kind: Literal["table"] = "table"
    rows: str
    columns: tuple[str, ...]
    values: dict[str, tuple[Finite | str, ...]] = {}

    def merge(self, later: Self) -> Self:
        """Add the rows of a later round, which replace earlier ones of their label."""
        return self.model_copy(update={"values": {**self.values, **later.values}})


class Matrix(_Diagnostic):
    """Values of pairs, such as of a task and the adapter of another client's task.

    A cell that is missing is unknown; ``marked`` lists columns by row.

    >>> early = Matrix(title="Weights", rows="task", columns="source",
    ...                values={"0/1": {"1/0": 0.5}})
    >>> later = early.model_copy(update={"values": {"0/1": {"2/0": 0.1}, "2/1": {}}})
    >>> early.merge(later).values
    {'0/1': {'2/0': 0.1}, '2/1': {}}
    """

    kind: Literal["matrix"] = "matrix"
    rows: str
    columns: str
    values: dict[str, dict[str, Finite]] = {}
    marked: dict[str, list[str]] = {}

    def merge(self, later: Self) -> Self:
        """Add the rows of a later round, which replace earlier ones of their label."""
        marked = {row: of for row, of in self.marked.items() if row not in later.values}
        return self.model_copy(
            update={
                "values": {**self.values, **later.values},
                "marked": {**marked, **later.marked},
            }
        )


class Clustering(BaseModel):
    """Where the server has put the model of each client in one round.

    Attributes:
        cluster: of each client's model; `NONE`: noise.
        origin: the server's model that it seems to have started from.
        reached: the server's model that it went into, or `NONE`.
        map: two coordinates of it.
        concept: the hidden concept of each client's data, filled in by the record as
            neither side of an algorithm knows it; empty where there is none.
        ari: adjusted Rand index of ``cluster`` against ``concept``.
        effectiveness: fraction of the clients whose model went back to its origin.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    round: Annotated[int, Field(ge=1)]
    clients: Annotated[list[Number], Field(min_length=1)]
    concept: list[Number] = []
    cluster: list[NumberOrNone]
    origin: list[int]
    reached: list[NumberOrNone]
    map: list[tuple[Finite, Finite]]
    ari: Index | None = None
    effectiveness: Share | None = None

    @model_validator(mode="after")
    def _one_of_each_for_every_client(self) -> Self:
        for key in ("concept", "cluster", "origin", "reached", "map"):
            values = getattr(self, key)
            if len(values) != len(self.clients) and (key != "concept" or values):
                raise ValueError(f"{key} has not one entry for each of the clients")
        return self

    @property
    def clusters(self) -> int:
        """Number of clusters, noise aside."""
        return len({*self.cluster} - {NONE})


class Points(_Diagnostic):
    """Clients' models as points of a plane, in clusters, round by round."""

    kind: Literal["points"] = "points"
    frames: list[Clustering]

    def merge(self, later: Self) -> Self:
        """Add the rounds of a later one."""
        return self.model_copy(update={"frames": [*self.frames, *later.frames]})


Diagnostic: TypeAlias = Table | Matrix | Points
Diagnostics: TypeAlias = dict[str, Diagnostic]


def merged(known: Diagnostic | None, later: Diagnostic) -> Diagnostic:
    """Add a diagnostic of a later round to the earlier ones of its name."""
    if type(known) is not type(later):
        return later
    return known.merge(later)  # type: ignore[arg-type]
