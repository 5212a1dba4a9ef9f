"""The contracts of an algorithm's two sides. Read this file first.

An algorithm is a `ServerStrategy`, a `ClientLearner`, their hyper-parameters and a
declaration (`fcl_flower.algorithms.registry`). A strategy that queries clients before
they train is also `ServerQueries`, its learner `ClientQueries`; one whose server needs
sums alone is also `SumsUpdates`. State is passed as a value and returned as a value, so
that a process may end between any two calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Never,
    TypeAlias,
    TypeVar,
)

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.config.parsing import Params as Params
from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.types import Arrays, ClientTask, Payload, TaskStage, Update

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fcl_flower.data.examples import Examples, TaskData
    from fcl_flower.data.transforms import Transform
    from fcl_flower.models.heads import MultiHeadModel
    from fcl_flower.training.loop import Training


P = TypeVar("P", bound=Params)

Metrics: TypeAlias = Mapping[ClientTask, Mapping[str, float]]
"""Scalars of clients' updates, by client and the task that it trained on."""


# ---- the server side


@dataclass(frozen=True, slots=True)
class Group:
    """Roles of one kind of groups; the kind of ``base/0`` is ``base``.

    Attributes:
        mean: a mean over clients, of models or of anything else. In an asynchronous run
            one update moves it part of the way; all else that `aggregate_train` makes
            of it counts at once. In a large round its updates lie on the disk, and a
            tensor is read whenever it is looked at.
        model: a model that is the same for all clients: a client receives it whole, or
            as `SparseArray` what it lacks, and an update's group of the same name is it
            after training. With ``federation.wire_dtype`` int8 and less it travels as
            rounded differences.
        rounded: with int8 and less it is rounded as it is. All groups that are neither
            this nor a `model` stay exact.
        shared: other clients receive it as it was sent.
        predicts: clients need it to predict, where they receive more in order to train.
        on_disk: few of many are looked at in a round, so that the server has them on
            the disk, and reads a tensor whenever it is looked at.
    """

    mean: bool = False
    model: bool = False
    rounded: bool = False
    shared: bool = False
    predicts: bool = False
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of the run's network that shared tensors do not tell.

    Attributes:
        features: width of what the body returns.
        classes: logits of a head.
        single_head: one head serves every task.
    """

    features: int = 0
    classes: int = 0
    single_head: bool = False


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """Which classes are learned when, in a single head.

    Attributes:
        until: for each task the places in the head of all that clients learn by its
            end, ascending; for each hidden concept those of all.
        names: the class's name at each place.
    """

    until: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()


def _no_trainer() -> Never:
    raise ContractError("trainer: got none, expected one to train on the server")


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Where a strategy runs.

    Attributes:
        seed: the run's seed (see `core.schedule.derive`).
        model: sizes of the network.
        classes: empty unless the strategy says that it `needs_classes`.
        trainer: makes the `ServerTrainer` that the declaration names, with the run's
            public data.
    """

    seed: int
    model: ModelShape = field(default_factory=ModelShape)
    classes: ClassPlan = field(default_factory=ClassPlan)
    trainer: Callable[[], Any] = _no_trainer


class ServerStrategy(ABC, Generic[P]):
    """Server side: NumPy in, NumPy out; knows neither Flower nor the client side.

    Class attributes:
        groups: roles of the groups of state and messages, by kind; others have none. An
            algorithm without any `mean` needs rounds, unless `adds_up`.
        predicts_locally: clients predict with what they keep themselves, so nothing is
            sent to them for an evaluation.
        robust_aggregation: all that it averages, if anything, goes through
            `aggregation`, so that ``federation.aggregation`` may be any.
        needs_classes: it is given the plan of the classes, so that a run without one is
            refused.

    Attributes:
        aggregation: the run's policy, the mean unless another is set;
            ``combine_groups`` is what most strategies call.
    """

    groups: ClassVar[Mapping[str, Group]] = {"base": Group(mean=True)}
    predicts_locally: ClassVar[bool] = False
    robust_aggregation: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False

    def __init__(self, params: P, context: ServerContext) -> None:
        """Keep the hyper-parameters and the context."""
        self.params = params
        self.context = context
        self.aggregation = Aggregation()

    @classmethod
    def kinds(
        cls,
        role: Literal["mean", "model", "rounded", "shared", "predicts", "on_disk"],
    ) -> tuple[str, ...]:
        """List the kinds of groups that have a role."""
        return tuple(kind for kind, group in cls.groups.items() if getattr(group, role))

    @abstractmethod
    def init(self, model: Arrays) -> Payload:
        """Create the server state before round 1.

        Args:
            model: the initial shared tensors by name; dense.
        """

    @abstractmethod
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        """Select what ``client`` (its partition number) receives for this stage."""

    def configure_evaluate(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload:
        """Select what ``client`` receives in order to predict after this stage."""
        if needed := self.kinds("predicts"):
            return {kind: state[kind] for kind in needed}
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
        """Compute the next server state.

        Args:
            state: of which `configure_train` sent parts; must not be changed in place.
            stage: of the round; its task is the round's, whose start and end it names.
            updates: by client, in ascending order of client; never empty.
        """

    def on_state_lost(self, state: Payload, client: int) -> Payload:
        """Forget what a client held, as it lost its own state and starts anew."""
        return state

    def forget(self, state: Payload, client: int, task: int | None) -> Payload:
        """Take out what a client contributed, as if it had never been received.

        Args:
            state: must not be changed in place.
            client: whose contributions are taken out.
            task: of which of its tasks, counted from 0; None for all.

        Raises:
            ConfigError: there is nothing of it in the state, or, as here, contributions
                are not kept apart.
        """
        raise config_error(
            "strategy",
            type(self).__name__,
            "one that keeps what clients send apart, such as analytic: what was mixed "
            "into a network cannot be taken out",
        )

    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float | Diagnostic]:
        """Report on a round, by name: finite numbers, tables, matrices and points.

        A diagnostic of a later round adds to the earlier ones of its name.

        Args:
            state: after the round.
            stage: of the round.
            metrics: of the updates that were used, by client and its task.
        """
        return {}

    def remarks(self) -> Mapping[str, str]:
        """Say what a reader of the results must know, by subject."""
        return {}

    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        """Name a setting that a user should change, by what a run has reported.

        A sentence, which is shown once, when the run is over; empty for none.
        """
        return ""


class ServerQueries(ABC):
    """A strategy that queries clients before they train.

    Its learners are `ClientQueries`; each reply comes back through `check_query_reply`
    and `aggregate_query`, before anything is sent in the round.
    """

    @property
    def asks(self) -> bool:
        """There are queries in this run at all."""
        return True

    @abstractmethod
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        """Write the query to ``client`` before it trains; None asks nothing."""

    @abstractmethod
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        """Refuse a reply that must not be used; non-finite ones are in any case.

        Raises:
            WireError: a group, name or shape is not what this strategy expects.
        """

    @abstractmethod
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        """Compute the next server state from the replies by client.

        Called once for each task that clients with a reply start; ``stage`` names it.
        """


class SumsUpdates(ABC):
    """A strategy whose server needs no more of a round than sums over its clients.

    With secure aggregation it sees no update, and `aggregate_train` is not called.

    Class attributes:
        weighs_examples: a client counts as often as it has examples, so that the sum is
            told as a mean; otherwise tensors are added up as they are (see `adds_up`).
    """

    weighs_examples: ClassVar[bool] = True

    def check_summable(self) -> None:
        """Refuse parameters with which sums are not enough.

        Raises:
            ConfigError: one sentence names the parameter, and what was expected.
        """
        return

    @abstractmethod
    def summands(self, state: Payload) -> Payload:
        """Lay out every update: tensors of its groups, names, shapes and dtypes.

        Groups of kind ``meta`` stay with the clients. A client may leave out a group
        that has nothing to add, unless examples weigh.
        """

    @abstractmethod
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        """Compute the next server state.

        Args:
            state: must not be changed in place.
            stage: of the round.
            total: the sum of the round's updates, or their mean if examples weigh, in
                the dtypes of `summands`; ``num_examples`` is a sum in any case.

        Raises:
            WireError: no honest clients have this sum.
        """


def adds_up(strategy: ServerStrategy[Any] | type[ServerStrategy[Any]]) -> bool:
    """Tell whether the state follows from the sum of all updates so far.

    Their order and how often one comes are then nothing to it. It needs no rounds, an
    old update is as good as a new one, and the strategy alone says how large one may
    be.
    """
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return issubclass(kind, SumsUpdates) and not kind.weighs_examples


# ---- the client side


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
        augment: changes inputs at random before a training step; None for not.
    """

    client: int
    seed: int
    training: "Training"
    device: str = "cpu"
    privacy: PrivacySection = field(default_factory=PrivacySection)
    hidden_tasks: bool = False
    augment: "Transform | None" = None


class ClientLearner(ABC, Generic[P]):
    """Client side: torch inside, NumPy at both ends; knows not the server side.

    Class attributes:
        temporary_state: groups of the state that nothing needs once a task has ended,
            such as an optimizer's moments or a copy of the model before the task. All
            else has to be kept from finished tasks, to predict or to go on learning,
            and counts in what a client stores.
        training_only: groups of what is received, and of an update, that no prediction
            needs; as they come anew with later rounds, they do not count either. In
            both a name also stands for all that begin with it and a slash.
        update_is_model: `predict` takes the payload of the client's own update in the
            place of ``received``, and so can be tested before the aggregation.
        needs_task: `predict` depends on the task even where all tasks have one head.
        balances: values of ``training.balance`` that training obeys, beside ``none``.
        augments: it trains on batches of samples, to which it applies
            ``context.augment``.
    """

    temporary_state: Collection[str] = ("optimizer",)
    training_only: Collection[str] = ()
    update_is_model: ClassVar[bool] = False
    needs_task: bool = False
    balances: ClassVar[Collection[str]] = ()
    augments: ClassVar[bool] = False

    def __init__(
        self, params: P, model: "MultiHeadModel", context: ClientContext
    ) -> None:
        """Keep the hyper-parameters, a freshly initialised model and the context."""
        self.params = params
        self.model = model
        self.context = context

    @classmethod
    def replace_heads(cls, model: "MultiHeadModel", params: Params) -> None:
        """Give a freshly initialised network other heads than linear layers.

        Called wherever the network of a run is made, with the generator seeded by the
        run's seed. What of the heads clients share is in the server's first state.

        Args:
            model: whose ``heads`` may be replaced, each by a `GrowingHead`.
            params: the hyper-parameters of the algorithm.
        """
        return

    def init(self) -> Payload:
        """Create the client's private state before its first task."""
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

    def select_model(
        self, state: Payload, received: Payload, samples: "Examples"
    ) -> Payload:
        """Choose what of ``received`` suits data like ``samples``, for `predict`.

        Called before an evaluation without task identities: all that a client knows
        are a few labelled examples of the present.
        """
        return received

    @abstractmethod
    def predict(
        self, state: Payload, received: Payload, task: int, x: "Tensor"
    ) -> "Tensor":
        """Compute logits, shape (batch, classes), for inputs of ``task``.

        Args:
            state: the client's private state.
            received: what the strategy sends for an evaluation, or what `select_model`
                made of it; empty for a strategy that `predicts_locally`.
            task: index of the task that ``x`` belongs to; 0 where it is hidden.
            x: shape (batch, *input_shape).
        """

    def predictor(
        self, state: Payload, received: Payload, task: int
    ) -> "nn.Module | None":
        """Make a module that computes `predict` by itself, to be exported.

        Returns:
            from inputs to logits, by torch alone, without a choice that depends on the
            size of the batch; None, as here, where ``self.model`` called as a whole is
            it, with the weights that `predict` gives it.

        Raises:
            ConfigError: there is none; the message says why.
        """
        return None


class ClientQueries(ABC):
    """A learner whose strategy is `ServerQueries`."""

    @abstractmethod
    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: "TaskData"
    ) -> Payload:
        """Answer a query before a task; ``state`` stays as it is."""
