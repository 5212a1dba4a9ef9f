"""The contracts of an algorithm's two sides. Read this file first.

An algorithm is a `ServerStrategy`, a `ClientLearner`, their hyper-parameters and a
declaration (`fcl_flower.algorithms.registry`). In each round the framework calls, in
this order:

1. `ServerStrategy.send` for each client: what the client receives.
2. `ClientLearner.train` on each client: its next private state and its update.
3. `ServerStrategy.check_update` for each update that comes back.
4. `ServerStrategy.combine` once: the next server state.
5. `ServerStrategy.report` once: numbers for the report.

For an evaluation it calls `ServerStrategy.send_to_predict` and `ClientLearner.predict`.
A strategy that queries clients before they train is also `ServerQueries`, and its
learner is `ClientQueries`. A strategy whose server needs sums alone is also
`SumsUpdates`.

State is passed as a value and returned as a value. So a process may end between any two
calls.
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
    NamedTuple,
    Never,
    TypeAlias,
    TypeVar,
)

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.config.parsing import Params as Params
from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    Arrays,
    ClientTask,
    Payload,
    TaskStage,
    Update,
    group_kind,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fcl_flower.data.examples import Examples, TaskData
    from fcl_flower.data.transforms import Transform
    from fcl_flower.models.heads import MultiHeadModel
    from fcl_flower.training.loop import Training


P = TypeVar("P", bound=Params)

Metrics: TypeAlias = Mapping[ClientTask, Mapping[str, float]]
"""The scalars of clients' updates, by client and the task that it trained on."""

Updates: TypeAlias = Mapping[int, Update]
"""The updates of a round by client, in ascending order of client; never empty."""

Report: TypeAlias = Mapping[str, float | Diagnostic]
"""Finite numbers, tables, matrices and points, by name."""


# ---- the server side


Role: TypeAlias = Literal["model", "private", "sum"]
"""The role of one kind of groups of tensors; the kind of ``base/0`` is ``base``.

- ``model``: the same for all clients, and a mean over them. A client receives it whole,
  or as a `SparseArray` of the entries that the client lacks. An update's group of the
  same name is this model after training. With ``federation.wire_dtype`` int8 or smaller
  it travels as rounded differences. In a large round updates lie on the disk.
- ``private``: the work of one client, which others may receive as it is. With int8 or
  smaller its values are rounded. The server keeps it on the disk.
- ``sum``: a sum over all updates so far, of any order. Such a strategy needs no rounds.

A group without a role stays in memory, and travels whole and exact.
"""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of the run's network that shared tensors do not tell.

    Attributes:
        features: width of the body's output.
        classes: logits of a head.
        single_head: one head serves every task.
    """

    features: int = 0
    classes: int = 0
    single_head: bool = False


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """The plan of which classes are learned when, in a single head.

    Attributes:
        until: for each task the places in the head of all classes that clients learn by
            the task's end, ascending. Where concepts are hidden, each concept has the
            places of all its classes.
        names: the class's name at each place.
    """

    until: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()


def _no_trainer() -> Never:
    raise ContractError("trainer: got none, expected one to train on the server")


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The run, as a strategy sees it.

    The number of clients is not known before they come. A strategy that needs it counts
    them in its state.

    Attributes:
        seed: the run's seed.
        model: sizes of the network.
        classes: the plan of the classes; empty unless the declaration asks for it by
            `needs_classes`.
        trainer: makes the `ServerTrainer` that the declaration names, with the run's
            public data.
    """

    seed: int
    model: ModelShape = field(default_factory=ModelShape)
    classes: ClassPlan = field(default_factory=ClassPlan)
    trainer: Callable[[], Any] = _no_trainer

    def derive(self, purpose: str, *key: int) -> int:
        """Derive the seed of one purpose (`core.schedule.derive`)."""
        return derive(self.seed, purpose, *key)


class ServerStrategy(ABC, Generic[P]):
    """The server side: NumPy in, NumPy out, without Flower and without the client side.

    Class attributes:
        groups: roles of the groups of state and messages, by kind.
        predicts: kinds of groups that clients predict with, where they receive more to
            train with; empty where they predict with all that they receive.
        predicts_locally: clients predict with their own state alone, so the server
            sends nothing for an evaluation.
        needs_rounds: the strategy looks at all updates of a round together. Otherwise
            an asynchronous run moves each ``model`` part of the way by one update; all
            else that `combine` computes from an update counts at once.
        robust_aggregation: every average of the strategy, if any, goes through
            `aggregation`. So ``federation.aggregation`` may have any value.

    Attributes:
        aggregation: the run's policy; the mean unless the run sets another. Most
            strategies call its ``combine_groups``.
    """

    groups: ClassVar[Mapping[str, Role]] = {"base": "model"}
    predicts: ClassVar[Collection[str]] = ()
    predicts_locally: ClassVar[bool] = False
    needs_rounds: ClassVar[bool] = False
    robust_aggregation: ClassVar[bool] = False

    def __init__(self, params: P, context: ServerContext) -> None:
        """Keep the hyper-parameters and the context."""
        self.params = params
        self.context = context
        self.aggregation = Aggregation()
        self.prepare()

    def prepare(self) -> None:
        """Prepare what the strategy needs beside its attributes. Called once."""
        return

    @classmethod
    def kinds(cls, role: Role) -> tuple[str, ...]:
        """List the kinds of groups that have a role."""
        return tuple(kind for kind, its_role in cls.groups.items() if its_role == role)

    @classmethod
    def to_predict(cls, received: Payload) -> Payload:
        """Select the groups that clients predict with."""
        if not cls.predicts:
            return received
        return {g: a for g, a in received.items() if group_kind(g) in cls.predicts}

    @abstractmethod
    def init(self, model: Arrays) -> Payload:
        """Create the server state before round 1. Called once.

        Args:
            model: the initial shared tensors by name; dense. Among them are buffers,
                such as the running variances of BatchNorm: average these alone.
        """

    @abstractmethod
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        """Select what a client receives to train with.

        Called once for each client that takes part, before its training.

        Args:
            state: the server state; must not be changed in place.
            stage: the round and the client's task.
            client: the client's partition number, counted from 0.

        Returns:
            groups of tensors; the client's `ClientLearner.train` gets them as
            ``received``.
        """

    def send_to_predict(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        """Select what a client receives to predict with after this stage.

        Called before an evaluation. By default the client receives what it would train
        with, as far as it `predicts` with that.
        """
        return self.to_predict(self.send(state, stage, client))

    def check_update(self, state: Payload, update: Update) -> None:
        """Refuse an update that must not be aggregated.

        Called once for each update, before `combine`. The framework itself
        refuses values that are not finite.

        Raises:
            WireError: a group, name or shape is not what this strategy expects.
        """
        return

    @abstractmethod
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        """Compute the next server state from a round's updates.

        Called once for each round, and in an asynchronous run once for each update.

        Args:
            state: the server state that `send` read; must not be changed in
                place.
            stage: the round's stage: its task, and whether the round starts or ends
                that task.
            updates: the round's updates.

        Returns:
            the next state as a whole.
        """

    def on_state_lost(self, state: Payload, client: int) -> Payload:
        """Drop the server's record of what a client holds; return the next state.

        Called when a client reports that it lost its private state and starts anew.
        """
        return state

    def forget(self, state: Payload, client: int, task: int | None) -> Payload:
        """Remove what a client contributed, as if the server had never received it.

        Called by ``fcl forget``, while no server runs.

        Args:
            state: the server state; must not be changed in place.
            client: the client whose contributions are removed.
            task: the client's task, counted from 0, whose contributions are removed;
                None for all its tasks.

        Returns:
            the next state.

        Raises:
            ConfigError: the state has no contribution of the client, or, as here, the
                strategy does not keep contributions apart.
        """
        raise config_error(
            "strategy",
            type(self).__name__,
            "one that keeps clients' contributions apart, such as analytic: a "
            "contribution to a network cannot be taken out",
        )

    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        """Report on a round.

        Called once after each round. A later round's diagnostic is added to the earlier
        ones of the same name.

        Args:
            state: the server state after the round.
            stage: the round's stage.
            metrics: scalars of the updates that were aggregated, by client and its
                task.
        """
        return {}

    def remarks(self) -> Mapping[str, str]:
        """Say what a reader of the results must know, by subject.

        Called once, before round 1.
        """
        return {}

    def advice(self, diagnostics: Mapping[str, Diagnostic]) -> str:
        """Name a setting that a user should change, judged by a run's diagnostics.

        Called once, at the end of a run.

        Returns:
            a sentence for the user; empty for no advice.
        """
        return ""


class ServerQueries(ABC):
    """A strategy that queries clients before they train; its learners `ClientQueries`.

    At the beginning of a round the framework calls `configure_query` for each client.
    Each reply goes through `check_query_reply`, and then all through `aggregate_query`.
    Only then is `send` called.
    """

    @property
    def asks(self) -> bool:
        """Whether this run has queries at all."""
        return True

    @abstractmethod
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        """Write the query to a client before it trains; return None to ask nothing."""

    @abstractmethod
    def check_query_reply(self, state: Payload, answer: Payload) -> None:
        """Refuse a reply that must not be used.

        Called once for each reply. The framework itself refuses values that are not
        finite.

        Raises:
            WireError: a group, name or shape is not what this strategy expects.
        """

    @abstractmethod
    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        """Compute the next server state from replies to queries.

        Called once for each task that some of the replying clients start.

        Args:
            state: the server state; must not be changed in place.
            stage: the stage of that task.
            answers: the replies of the clients that start the task, by client.
        """


class SumsUpdates(ABC):
    """A strategy whose server needs only sums over the clients of a round.

    With secure aggregation the server sees no single update. Then the framework calls
    `aggregate_sum` in the place of `combine`. Each client is weighted by its
    number of examples, so that the server gets the sum as a mean. A strategy that
    `adds_up` gets the unweighted sum.
    """

    def check_summable(self) -> None:
        """Refuse hyper-parameters with which sums are not enough. Called before a run.

        Raises:
            ConfigError: one sentence names the parameter, and what was expected.
        """
        return

    @abstractmethod
    def summands(self, state: Payload) -> Payload:
        """Lay out an update: the groups, names, shapes and dtypes of its tensors.

        Groups of kind ``meta`` stay with the clients. If the strategy `adds_up`, a
        client may leave out a group to which it adds nothing.
        """

    @abstractmethod
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        """Compute the next server state from the sum of a round's updates.

        Args:
            state: the server state; must not be changed in place.
            stage: the round's stage.
            total: the mean of the updates, or their sum if the strategy `adds_up`, in
                the dtypes of `summands`. ``num_examples`` is a sum in both cases.

        Raises:
            WireError: no honest clients have this sum.
        """


def adds_up(strategy: ServerStrategy[Any] | type[ServerStrategy[Any]]) -> bool:
    """Tell whether the server state follows from the ``sum`` of all updates so far.

    The order of the updates does not matter then, and a client's number of updates does
    not either. An old update is as good as a new one. The strategy alone limits the
    size of an update.
    """
    return bool(strategy.kinds("sum"))


# ---- the client side


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The run and the client, as a learner sees them.

    Attributes:
        client: the client's partition number, counted from 0.
        seed: the run's seed.
        training: epochs, batch size, learning rate and when to lower it.
        device: torch device name, such as ``cpu`` or ``cuda:0``.
        privacy: whether and how training has to hide examples.
        hidden_tasks: the client does not know the task, or concept, of its samples. All
            of them come as task 0.
        augment: changes inputs at random before a training step; None for no change.
    """

    client: int
    seed: int
    training: "Training"
    device: str = "cpu"
    privacy: PrivacySection = field(default_factory=PrivacySection)
    hidden_tasks: bool = False
    augment: "Transform | None" = None

    def derive(self, purpose: str, *key: int) -> int:
        """Derive this client's seed of one purpose (`core.schedule.derive`)."""
        return derive(self.seed, purpose, self.client, *key)


class Turn(NamedTuple):
    """A client's turn to train in a round; nothing in it may be changed in place.

    Attributes:
        state: the client's private state. Its group ``privacy`` holds what training has
            cost in privacy so far (`privacy.accounting.SPENT`).
        received: the groups that the server has sent.
        stage: the round and the client's task.
        data: the task's samples; ``data.test`` must not be used.
    """

    state: Payload
    received: Payload
    stage: TaskStage
    data: "TaskData"


class ClientLearner(ABC, Generic[P]):
    """The client side: torch inside, NumPy at both ends, without the server side.

    Class attributes:
        temporary_state: groups of the state that nothing needs once a task has ended,
            such as an optimizer's moments and the model of a `Teacher`. All other
            groups must be kept from finished tasks, and count in what a client stores.
            A name also stands for all names that begin with it and a slash.
        update_is_model: `predict` accepts the payload of the client's own update in the
            place of ``received``. So the client can be tested before the aggregation.
        needs_task: `predict` depends on the task even where all tasks have one head.
        balances: values of ``training.balance`` that training obeys, beside ``none``.
        augments: the learner trains on batches of samples, and applies
            ``context.augment`` to them.
    """

    temporary_state: Collection[str] = ("optimizer", "memory/teacher")
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
        self.prepare()

    def prepare(self) -> None:
        """Prepare what the learner needs beside its attributes. Called once.

        Raises:
            ConfigError: the method does not suit the model or the hyper-parameters.
        """
        return

    @classmethod
    def replace_heads(cls, model: "MultiHeadModel", params: Params) -> None:
        """Replace the linear heads of a freshly initialised network by other heads.

        Called once for each network that a run creates, with the generator seeded by
        the run's seed. The parts of heads that clients share are in the server's first
        state.

        Args:
            model: the network; each of its ``heads`` may be replaced by a
                `GrowingHead`.
            params: the hyper-parameters of the algorithm.
        """
        return

    def init(self) -> Payload:
        """Create the client's private state before its first task.

        Called when the client has no saved state.
        """
        return {}

    @abstractmethod
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        """Train on the current task; return the next private state and the update.

        Called once for each round in which the client takes part. The next state
        replaces ``turn.state`` as a whole.
        """

    def select_model(
        self, state: Payload, received: Payload, samples: "Examples"
    ) -> Payload:
        """Choose the part of ``received`` that suits ``samples``, for `predict`.

        Called before an evaluation without task identities. There a client knows only a
        few labelled samples of the present.
        """
        return received

    @abstractmethod
    def predict(
        self, state: Payload, received: Payload, task: int, x: "Tensor"
    ) -> "Tensor":
        """Compute logits, shape (batch, classes), for inputs of ``task``.

        Args:
            state: the client's private state.
            received: the groups from `ServerStrategy.send_to_predict`, or what
                `select_model` returned for them; empty for a strategy that
                `predicts_locally`.
            task: index of the task that ``x`` belongs to; 0 where it is hidden.
            x: shape (batch, *input_shape).
        """

    def predictor(
        self, state: Payload, received: Payload, task: int
    ) -> "nn.Module | None":
        """Build a module that computes `predict` by itself. Called to export a model.

        Returns:
            a module from inputs to logits that uses torch alone. No choice in it
            depends on the size of the batch. None, as here, means that
            ``self.model`` is that module, with the weights that `predict` loads.

        Raises:
            ConfigError: there is no such module; the message says why.
        """
        return None


class ClientQueries(ABC):
    """A learner whose strategy is `ServerQueries`."""

    @abstractmethod
    def answer_query(self, turn: Turn) -> Payload:
        """Answer the query ``turn.received`` before a task; the state stays."""
