"""The two halves of an algorithm, side by side. Read this file first.

A new algorithm is one file with a `ServerStrategy`, one file with a `ClientLearner`,
and one line in `fcl_flower.algorithms.registry`. State is passed as a value and
returned as a value, so that a process may die between any two calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from fcl_flower.config.params import Params as Params
from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update

if TYPE_CHECKING:
    from torch import Tensor

    from fcl_flower.data.examples import Examples, TaskData
    from fcl_flower.models.registry import MultiHeadModel
    from fcl_flower.training.loop import Training
    from fcl_flower.training.server_trainer import ServerTrainer


P = TypeVar("P", bound=Params)


class ServerStrategy(ABC, Generic[P]):
    """Server half: NumPy in, NumPy out; knows neither Flower nor the clients.

    Attributes:
        bench: where it trains, if `trains` says that it does; set before `init`.

    Class attributes:
        personal: clients predict with what they keep themselves, so nothing is
            sent to them for an evaluation.
        averaged: the kinds of groups in the state that are means over clients. In an
            asynchronous run one update moves them part of the way; all else that
            `aggregate_train` makes of it counts at once. Empty: the algorithm needs
            rounds.
        trains: it needs a `ServerTrainer`.
    """

    evaluates_locally: ClassVar[bool] = False
    averaged_groups: ClassVar[tuple[str, ...]] = ("base",)
    needs_public_data: ClassVar[bool] = False

    trainer: "ServerTrainer"

    def __init__(self, params: P, seed: int) -> None:
        """Keep the hyper-parameters; ``seed`` is the run's seed (see `seeds`)."""
        self.params = params
        self.seed = seed

    @abstractmethod
    def init(self, model: Arrays) -> Payload:
        """Return the server state before round 1.

        Args:
            model: the initial shared tensors by name; dense.
        """

    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        """Return a question for ``client`` before it trains; None asks nothing.

        The learner's `answer` comes back through `check_query_reply` and
        `aggregate_query`, before anything is broadcast in the round.
        """
        return None

    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        """Refuse an answer that must not be used; non-finite ones are in any case.

        Raises:
            WireError: a group, name or shape is not what this strategy expects.
        """
        return

    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        """Return the next server state, with the answers by client.

        Called once for each task that those who answered begin; ``stage`` names it.
        """
        return state

    @abstractmethod
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        """Return what ``client`` (its partition number) receives for this stage."""

    def check_update(self, state: Payload, update: Update) -> None:
        """Refuse an update that must not be aggregated.

        Called once per update before `aggregate_train`; what passes is then refused if
        it holds non-finite values.

        Raises:
            WireError: a group, name or shape is not what this strategy expects.
        """
        return

    @abstractmethod
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        """Return the next server state.

        Args:
            state: the state that was broadcast; must not be changed in place.
            stage: of the round; ``first`` and ``last`` speak of the round's task.
            updates: by client, in ascending order of client; never empty.
        """

    def on_state_lost(self, state: Payload, client: int) -> Payload:
        """Return the state after a client has lost its memory, and begins anew."""
        return state

    def diagnostics(self, state: Payload, stage: TaskStage) -> Mapping[str, float]:
        """Return what the state says of the round, for the record and the report.

        ``overlap/C/T/c/t`` is how much task T of client C, which begins in this
        round, overlaps with task t of client c.
        """
        return {}

    def remarks(self) -> Mapping[str, str]:
        """Return what a reader of the results must know of this half, by subject."""
        return {}


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What a learner is told about where it runs.

    Attributes:
        client: the client's partition number, counted from 0.
        seed: the run's seed.
        training: epochs, batch size, learning rate and when to lower it.
        device: torch device name, such as ``cpu`` or ``cuda:0``.
    """

    client: int
    seed: int
    training: "Training"
    device: str = "cpu"


class ClientLearner(ABC, Generic[P]):
    """Client half: torch inside, NumPy at both ends; knows not the server half.

    Class attributes:
        rehearses: trains on samples of several tasks together, so that these need one
            head for all and have to be told apart.
        joint: trains in every round on the data of all tasks at once: a bound, not a
            method.
    """

    needs_single_head: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    def __init__(
        self, params: P, model: "MultiHeadModel", place: ClientContext
    ) -> None:
        """Keep the hyper-parameters, a freshly initialised model and the place."""
        self.params = params
        self.model = model
        self.context = place

    def init(self) -> Payload:
        """Return the client's private state before its first task."""
        return {}

    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: "TaskData"
    ) -> Payload:
        """Return what the strategy asks for before a task; ``state`` stays as it is.

        Raises:
            ContractError: this learner's strategy asks nothing.
        """
        raise ContractError(f"{type(self).__name__} answers no survey")

    @abstractmethod
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: "TaskData"
    ) -> tuple[Payload, Update]:
        """Train on the current task; return the next private state and the update.

        Neither ``state`` nor ``received`` may be changed in place.
        """

    def select_model(
        self, state: Payload, received: Payload, recent: "Examples"
    ) -> Payload:
        """Return what of ``received`` suits data like ``recent``, for `predict`.

        Called before an evaluation where nobody is told what the data are: all that a
        client knows are a few labelled examples that it has just met. By default
        everything suits everything.
        """
        return received

    @abstractmethod
    def predict(
        self, state: Payload, received: Payload, task: int, x: "Tensor"
    ) -> "Tensor":
        """Return logits, shape (batch, classes), for inputs of ``task``.

        Args:
            state: the client's private state.
            received: what the strategy broadcasts, or what `select_model` made of it;
                empty for a personal strategy.
            task: index of the task that ``x`` belongs to; 0 where it is hidden.
            x: shape (batch, *input_shape).
        """
