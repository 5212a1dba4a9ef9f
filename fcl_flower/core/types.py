"""The nouns of the system: plain, frozen classes that need NumPy only."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.errors import WireError


@dataclass(frozen=True, slots=True, eq=False)
class SparseArray:
    """A sparse array: some entries of a dense tensor, by flat index.

    An absent entry carries no information. An adapter reads it as zero; a receiver of
    base parameters keeps its own value. The constructor trusts its caller; code that
    decodes received bytes calls `validate`.

    Attributes:
        shape: shape of the dense tensor.
        indices: int64, shape (nnz,), strictly increasing flat (C order) indices.
        values: shape (nnz,), any dtype.
    """

    shape: tuple[int, ...]
    indices: npt.NDArray[np.int64]
    values: npt.NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def size(self) -> int:
        """The number of entries of the dense tensor."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """The number of present entries."""
        return len(self.indices)

    @property
    def density(self) -> float:
        """The share of present entries, in [0, 1]; 0 for an empty tensor."""
        return self.nnz / self.size if self.size else 0.0

    @classmethod
    def of_mask(
        cls, dense: npt.NDArray[Any], present: npt.NDArray[np.bool_]
    ) -> "SparseArray":
        """Keep the entries of ``dense`` where ``present`` (same shape) is true."""
        indices = np.flatnonzero(present)
        return cls(dense.shape, indices, dense.reshape(-1)[indices])

    @classmethod
    def of_nonzero(
        cls, dense: npt.NDArray[Any], threshold: float = 0.0
    ) -> "SparseArray":
        """Keep the entries of ``dense`` with magnitude above ``threshold``.

        NaN entries are kept, too: without them the receiver's check for non-finite
        values would miss a diverged client.

        >>> SparseArray.of_nonzero(np.array([[0.0, 2.0], [3.0, 0.0]])).indices.tolist()
        [1, 2]
        """
        # Not np.abs: the smallest int8, -128, has no positive counterpart.
        return cls.of_mask(dense, ~((dense >= -threshold) & (dense <= threshold)))

    @classmethod
    def of_channels(
        cls, dense: npt.NDArray[Any], channels: npt.NDArray[np.int64]
    ) -> "SparseArray":
        """Keep the rows of ``dense`` that ``channels`` lists, strictly increasing."""
        width = math.prod(dense.shape[1:])
        indices = (channels[:, None] * width + np.arange(width)).reshape(-1)
        return cls(dense.shape, indices, dense[channels].reshape(-1))

    def bitmap(self) -> npt.NDArray[np.uint8]:
        """Mark the entries that are present, a bit each, the lowest bit first.

        >>> SparseArray((10,), np.array([0, 9]), np.ones(2)).bitmap().tolist()
        [1, 2]
        """
        present = np.zeros(self.size, np.bool_)
        present[self.indices] = True
        return np.packbits(present, bitorder="little")

    def to_dense(self) -> npt.NDArray[Any]:
        """Make a dense tensor with zeros in place of absent entries."""
        flat = np.zeros(self.size, self.values.dtype)
        flat[self.indices] = self.values
        return flat.reshape(self.shape)

    def overwrite(self, dense: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Copy ``dense``, of the same shape, and replace the present entries."""
        if dense.shape != self.shape:
            raise WireError(
                f"a sparse tensor of shape {self.shape} cannot overwrite"
                f" a tensor of shape {dense.shape}"
            )
        flat = dense.reshape(-1).copy()
        flat[self.indices] = self.values
        return flat.reshape(self.shape)

    def validate(self) -> None:
        """Check that indices and values describe entries of ``shape``.

        Raises:
            WireError: an index is missing, repeated, out of order or out of range.
        """
        if self.indices.dtype != np.int64 or self.indices.ndim != 1:
            raise WireError(
                "indices must be int64 with one axis, not"
                f" {self.indices.dtype} with {self.indices.ndim}"
            )
        if self.values.shape != self.indices.shape:
            raise WireError(
                f"{self.nnz} indices need values of shape ({self.nnz},),"
                f" not {self.values.shape}"
            )
        if not np.all(self.indices[1:] > self.indices[:-1]):
            raise WireError("indices must be strictly increasing")
        if self.nnz and not (self.indices[0] >= 0 and self.indices[-1] < self.size):
            raise WireError(
                f"indices must lie in [0, {self.size}), not in"
                f" [{self.indices[0]}, {self.indices[-1]}]"
            )


Array: TypeAlias = npt.NDArray[Any]
AnyArray: TypeAlias = Array | SparseArray
Arrays: TypeAlias = Mapping[str, AnyArray]
"""A mapping of tensors by name; received tensors are read-only."""

Payload: TypeAlias = Mapping[str, Arrays]
"""A mapping of groups of tensors: server state, requests, updates, client state.

The first segment of a group's name (up to the first ``/``) is the group's kind:
``base``, ``adapters``, ``heads``, ``masks``. Bytes are counted by kind.
"""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's shape (of its dense form), dtype and storage, without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sparse: bool


class ReceivedArrays(Mapping[str, AnyArray]):
    """A mapping of a peer's tensors, each of which is decoded when it is first read.

    A few bytes may claim a tensor of gigabytes. A receiver that checks `specs` before
    it reads a tensor never allocates a tensor that does not fit.
    """

    def __init__(
        self, found: Mapping[str, TensorSpec], decode: Callable[[str], AnyArray]
    ) -> None:
        """Decode nothing yet; ``decode`` makes a tensor or raises `WireError`."""
        self.found = found
        self._decode = decode
        self._decoded: dict[str, AnyArray] = {}

    @override
    def __getitem__(self, name: str) -> AnyArray:
        if name in self.found and name not in self._decoded:
            self._decoded[name] = self._decode(name)
        return self._decoded[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    @override
    def __len__(self) -> int:
        return len(self.found)

    @override
    def __contains__(self, name: object) -> bool:
        return name in self.found


def specs(arrays: Arrays) -> Mapping[str, TensorSpec]:
    """Describe tensors without decoding any."""
    if isinstance(arrays, ReceivedArrays):
        return arrays.found
    return {
        name: TensorSpec(
            tuple(tensor.shape), tensor.dtype, isinstance(tensor, SparseArray)
        )
        for name, tensor in arrays.items()
    }


@dataclass(frozen=True, slots=True)
class TaskStage:
    """The stage of a client (or of a round) in its stream of tasks.

    Attributes:
        round: communication round, counted from 1 over the whole run.
        task: index of the client's current task, counted from 0.
        starts_task: the client trains on this task for the first time.
        ends_task: the client trains on this task for the last time, or for the last
            time until the task returns; it uploads what it has learned of the task.
    """

    round: int
    task: int
    starts_task: bool
    ends_task: bool


@dataclass(frozen=True, slots=True)
class Update:
    """The update that a client sends back after local training.

    Attributes:
        payload: tensors for the server.
        num_examples: number of training examples seen in one epoch, at least 0.
        metrics: scalars for the progress display, such as ``loss``.
        stage: client's stage at the time of the request; None for the stage of the
            round. The server sets it, never the client.
    """

    payload: Payload
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    stage: TaskStage | None = None

    def with_groups(self, groups: Payload) -> "Update":
        """Add groups of tensors to the payload, or replace them."""
        return replace(self, payload={**self.payload, **groups})


@dataclass(frozen=True, slots=True)
class Assignment:
    """The server's assignment to one client for a round.

    Attributes:
        stage: client's stage.
        since: round of the client's last update that was aggregated, 0 for none. The
            client's private state must not be older.
        evaluate: whether the client also evaluates after training, in the same reply.
    """

    stage: TaskStage
    since: int = 0
    evaluate: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A client's scores on the test set of each task so far, or each hidden concept.

    Attributes:
        accuracy: fraction of right answers on each test set.
        model_bytes: bytes that the client must keep from its finished tasks to predict
            and to go on learning.
        by_class: counts for each test set and class, shape (tasks, 3, classes): right
            answers, samples, and answers that name the class. Empty unless requested.
        inferred: fraction of each test set for which the most confident head gives both
            the right task and the right class. Empty except after a client's last task,
            and empty if there is one head.
        balanced: mean over the classes of the fraction of right answers, for each test
            set. Empty if no test set of the run is known to be unbalanced.
        unbalanced: whether, in one of the test sets, the largest class has three times
            the samples of the smallest or more.
        losses: mean loss on each test set, in nats for each token of an answer. Empty
            unless labels are tokens and all losses are finite.
    """

    accuracy: Sequence[float]
    model_bytes: int
    by_class: Sequence[Sequence[Sequence[int]]] = ()
    inferred: Sequence[float] = ()
    balanced: Sequence[float] = ()
    unbalanced: bool = False
    losses: Sequence[float] = ()


def group_kind(group: str) -> str:
    """Name the kind of a group: ``adapters`` for ``adapters/3/1``."""
    return group.split("/", 1)[0]


class ClientTask(NamedTuple):
    """A client and one of its tasks, both counted from 0."""

    client: int
    task: int

    @classmethod
    def of(cls, name: str) -> Self:
        """Parse ``c/t``."""
        client, task = name.split("/")
        return cls(int(client), int(task))

    @property
    def name(self) -> str:
        """The text ``c/t``."""
        return f"{self.client}/{self.task}"

    def group(self, kind: str) -> str:
        """Name the group of a payload that carries the task's tensors of a kind."""
        return f"{kind}/{self.name}"


def client_tasks(state: Payload, kind: str) -> list[ClientTask]:
    """List the tasks that have groups ``kind/c/t`` in a state, ascending."""
    start = f"{kind}/"
    names = (g.removeprefix(start) for g in state if g.startswith(start))
    return sorted(map(ClientTask.of, names))
