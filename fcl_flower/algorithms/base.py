"""The contracts of an algorithm's two sides. Read this file first.

An algorithm is a `ServerStrategy`, a `ClientLearner`, their hyper-parameters and a
declaration (`fcl_flower.algorithms.registry`). What only some need is a mixin of
`fcl_flower.algorithms.hooks`. State is passed as a value and returned as a value, so
that a process may end between any two calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.config.parsing import Params as Params
from fcl_flower.config.sections import PrivacySection
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update

if TYPE_CHECKING:
    from torch import Tensor

    from fcl_flower.data.examples import TaskData
    from fcl_flower.models.heads import MultiHeadModel
    from fcl_flower.training.loop import Training


P = TypeVar("P", bound=Params)


class ServerStrategy(ABC, Generic[P]):
    """Server side: NumPy in, NumPy out; knows neither Flower nor the client side.

    Class attributes:
        evaluates_locally: clients predict with what they keep themselves, so nothing
            is sent to them for an evaluation.
        averaged_groups: the kinds of groups in the state that are means over clients.
            In an asynchronous run one update moves them part of the way; all else that
            `aggregate_train` makes of it counts at once. Empty: the algorithm needs
            rounds, unless it `adds_up`. Of the updates of a large round these groups
            lie on the disk, and a tensor is read whenever it is looked at: what takes
            one update after the other holds one of them.
        adds_up: the state follows from all updates so far, whatever their order and
            however often one comes: a sum. It needs no rounds, an old update is as
            good as a new one, and the strategy alone says how large one may be.
        combines: all that it averages, if anything, goes through `aggregation`, so that
            ``federation.aggregation`` may be any.
        handed_on: the kinds of groups that other clients receive as they were sent.
        differences: the kinds of groups in the state that are models, the same for all
            clients: a client receives one whole, or as `SparseArray` what it lacks, and
            an update's group of the same name is it after training. With
            ``federation.wire_dtype`` int8 and less they travel as rounded differences.
        rounded: the kinds of groups that may then be rounded as they are. All others
            are exact.
        predicts_with: the groups of the state that clients need to predict, where they
            receive more in order to train; empty for what `configure_train` returns.

    Attributes:
        aggregation: how updates are combined; the mean, unless the run's is set.
    """

    evaluates_locally: ClassVar[bool] = False
    averaged_groups: ClassVar[tuple[str, ...]] = ("base",)
    adds_up: ClassVar[bool] = False
    combines: ClassVar[bool] = False
    handed_on: ClassVar[tuple[str, ...]] = ()
    differences: ClassVar[tuple[str, ...]] = ()
    rounded: ClassVar[tuple[str, ...]] = ()
    predicts_with: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: P, seed: int) -> None:
        """Keep the hyper-parameters; ``seed`` is the run's seed (see `core.seeds`)."""
        self.params = params
        self.seed = seed
        self.aggregation = Aggregation()

    @abstractmethod
    def init(self, model: Arrays) -> Payload:
        """Return the server state before round 1.

        Args:
            model: the initial shared tensors by name; dense.
        """

    @abstractmethod
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        """Return what ``client`` (its partition number) receives for this stage."""

    def configure_evaluate(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload:
        """Return what ``client`` receives in order to predict after this stage."""
        if self.predicts_with:
            return {group: state[group] for group in self.predicts_with}
        return self.configure_train(state, stage, client)

    def check_update(self, state: Payload, update: Update) -> None:
        """Refuse an update that must not be aggregated.

        Called once per update before `aggregate_train`; non-finite values are refused
        in any case.

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
            state: of which `configure_train` sent parts; must not be changed in place.
            stage: of the round; its task is the round's, whose start and end it names.
            updates: by client, in ascending order of client; never empty.
        """


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Where a learner runs.

    Attributes:
        client: the client's partition number, counted from 0.
        seed: the run's seed.
        training: epochs, batch size, learning rate and when to lower it.
        device: torch device name, such as ``cpu`` or ``cuda:0``.
        privacy: whether and how training has to hide examples.
        hidden_tasks: nobody tells the client which task, or concept, its samples are
            of; all come as task 0.
    """

    client: int
    seed: int
    training: "Training"
    device: str = "cpu"
    privacy: PrivacySection = field(default_factory=PrivacySection)
    hidden_tasks: bool = False


class ClientLearner(ABC, Generic[P]):
    """Client side: torch inside, NumPy at both ends; knows not the server side.

    Class attributes:
        temporary: groups of the state that nothing needs once a task has ended, such
            as an optimizer's moments or a copy of the model before the task. All else
            has to be kept from finished tasks, to predict or to go on learning, and
            counts in what a client stores.
        for_training: groups of what is received, and of an update, that no prediction
            needs; as they come anew with later rounds, they do not count either. In
            both a name also stands for all that begin with it and a slash.
        update_is_model: `predict` takes the payload of the client's own update in the
            place of ``received``, and so can be tested before the aggregation.
    """

    temporary: Collection[str] = ("optimizer",)
    for_training: Collection[str] = ()
    update_is_model: ClassVar[bool] = False

    def __init__(
        self, params: P, model: "MultiHeadModel", context: ClientContext
    ) -> None:
        """Keep the hyper-parameters, a freshly initialised model and the context."""
        self.params = params
        self.model = model
        self.context = context

    def init(self) -> Payload:
        """Return the client's private state before its first task."""
        return {}

    @abstractmethod
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: "TaskData"
    ) -> tuple[Payload, Update]:
        """Train on the current task; return the next private state and the update.

        Neither ``state`` nor ``received`` may be changed in place; ``data.test`` must
        not be used. What the state has in ``privacy`` is what the client's data have
        cost (`privacy.accounting.SPENT`).
        """

    @abstractmethod
    def predict(
        self, state: Payload, received: Payload, task: int, x: "Tensor"
    ) -> "Tensor":
        """Return logits, shape (batch, classes), for inputs of ``task``.

        Args:
            state: the client's private state.
            received: what the strategy sends for an evaluation, or what
                `SelectsModel.select_model` made of it; empty for a strategy that
                evaluates locally.
            task: index of the task that ``x`` belongs to; 0 where it is hidden.
            x: shape (batch, *input_shape).
        """
