"""Diagnostics that a strategy reports beside accuracies: tables, matrices, points."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

NONE = -1
"""The number that stands for no cluster, or for no model."""

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
    """A table whose rows have a label and a few cells, such as one row a task."""

    kind: Literal["table"] = "table"
    rows: str
    columns: tuple[str, ...]
    values: dict[str, tuple[Finite | str, ...]] = {}

    def merge(self, later: Self) -> Self:
        """Add a later round's rows; a row replaces the earlier row of its label."""
        return self.model_copy(update={"values": {**self.values, **later.values}})


class Matrix(_Diagnostic):
    """A matrix of values of pairs, such as a task and another client's adapter.

    The value of a missing cell is unknown. ``marked`` lists marked columns by row.

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
        """Add a later round's rows; a row replaces the earlier row of its label."""
        marked = {
            row: columns
            for row, columns in self.marked.items()
            if row not in later.values
        }
        return self.model_copy(
            update={
                "values": {**self.values, **later.values},
                "marked": {**marked, **later.marked},
            }
        )


class Clustering(BaseModel):
    """The clusters into which the server has sorted the clients' models in one round.

    The lists have one entry for each client.

    Attributes:
        cluster: number of the cluster of the client's model; `NONE` for noise.
        origin: the server's model from which the client's model seems to have started.
        reached: the server's model that the client's model went into, or `NONE`.
        map: the client's model as a point of a plane.
        concept: hidden concept of the client's data; empty where there is none. The
            record fills it in, since neither side of an algorithm knows it.
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
        """The number of clusters without noise."""
        return len({*self.cluster} - {NONE})


class Points(_Diagnostic):
    """A plane with the clients' models as points, clustered, round by round."""

    kind: Literal["points"] = "points"
    frames: list[Clustering]

    def merge(self, later: Self) -> Self:
        """Add the rounds of a later diagnostic."""
        return self.model_copy(update={"frames": [*self.frames, *later.frames]})


Diagnostic: TypeAlias = Table | Matrix | Points
Diagnostics: TypeAlias = dict[str, Diagnostic]


def merged(earlier: Diagnostic | None, later: Diagnostic) -> Diagnostic:
    """Merge a later round's diagnostic into the earlier one of the same name.

    The later diagnostic stands alone if there is no earlier one of its type.
    """
    if type(earlier) is not type(later):
        return later
    return earlier.merge(later)  # type: ignore[arg-type]
