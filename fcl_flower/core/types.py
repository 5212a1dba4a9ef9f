"""The nouns of the system: plain, frozen, NumPy only."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.core.sparse import SparseArray

Array: TypeAlias = npt.NDArray[Any]
AnyArray: TypeAlias = Array | SparseArray
Arrays: TypeAlias = Mapping[str, AnyArray]
"""Tensors by name. Read-only once received."""

Payload: TypeAlias = Mapping[str, Arrays]
"""Named groups of tensors: server state, requests, updates, client state.

The first segment of a group's name (up to the first ``/``) says what kind of
knowledge it carries: ``base``, ``adapters``, ``heads``, ``masks``. Bytes are counted
by that kind.
"""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is, without its values.

    Attributes:
        shape: of the tensor in dense form.
        dtype: of its values.
        sparse: it is a `SparseArray`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sparse: bool


class ReceivedArrays(Mapping[str, AnyArray]):
    """Tensors from a peer, each decoded when it is read first.

    A few bytes may claim a tensor of gigabytes: whoever checks names, shapes and dtypes
    by `specs` before reading a tensor never makes one that does not fit.
    """

    def __init__(
        self, found: Mapping[str, TensorSpec], decode: Callable[[str], AnyArray]
    ) -> None:
        """Decode nothing yet.

        Args:
            found: what the tensors say of themselves, by name.
            decode: returns a tensor by its name, or raises `WireError`.
        """
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
    """Return what tensors are, without decoding any that is not decoded yet."""
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
    """Where one client stands in its stream of tasks.

    Attributes:
        round: communication round, counted from 1 over the whole run.
        task: index of the client's current task, counted from 0.
        starts_task: the client trains on this task for the first time.
        ends_task: the client trains on this task for the last time, or until it meets
            it again; the server gets what it has learned of it.
    """

    round: int
    task: int
    starts_task: bool
    ends_task: bool


@dataclass(frozen=True, slots=True)
class Update:
    """What one client sends back after local training.

    Attributes:
        payload: the tensors that travel.
        num_examples: number of training examples seen in one epoch, at least 0.
        metrics: scalars for the progress display, such as ``loss``.
        stage: the client's stage at the request, in the server's count of rounds; set
            by the server, never by the client. None: the stage of the round.
    """

    payload: Payload
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    stage: TaskStage | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the server wants of one client.

    Attributes:
        stage: where the client stands.
        since: the round of the client's last update that was aggregated, 0 for none:
            its memory must not be older.
        evaluate: it shall be tested after training, in the same reply.
    """

    stage: TaskStage
    since: int = 0
    evaluate: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One client's scores after learning a task.

    Attributes:
        accuracy: fraction of right answers on the test set of each task so far, or of
            each hidden concept.
        model_bytes: what the client must keep from its finished tasks, to predict and
            to go on learning.
        by_class: of each of these test sets how many samples of each class were
            answered rightly, are there, and were given as an answer; shape (tasks, 3,
            classes). Empty where nobody has asked for it.
    """

    accuracy: Sequence[float]
    model_bytes: int
    by_class: Sequence[Sequence[Sequence[int]]] = ()


def group_kind(group: str) -> str:
    """Return what a group carries: ``adapters`` for ``adapters/3/1``."""
    return group.split("/", 1)[0]
