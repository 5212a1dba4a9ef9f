"""Optional parts of an algorithm: a side has those from which it inherits.

Mixins of a `ServerStrategy`: `AsksClients`, `RestoresClients`, `Forgets`,
`SumsUpdates`, `Explains`, `KnowsModel`, `KnowsClasses` and `TrainsOnServer`. Mixins of
a `ClientLearner`: `AnswersQueries`, `SelectsModel` and `ReplacesHeads`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fcl_flower.core.diagnostics import Diagnostic
from fcl_flower.core.types import ClientTask, Payload, TaskStage, Update

if TYPE_CHECKING:
    from fcl_flower.config.parsing import Params
    from fcl_flower.data.examples import Examples, TaskData
    from fcl_flower.models.heads import MultiHeadModel
    from fcl_flower.training.server_trainer import ServerTrainer


class AsksClients(ABC):
    """A strategy that queries clients before they train.

    Its learners are `AnswersQueries`; each reply comes back through
    `check_query_reply` and `aggregate_query`, before anything is sent in the round.
    """

    @property
    def asks(self) -> bool:
        """Return whether there are queries in this run at all."""
        return True

    @abstractmethod
    def configure_query(
        self, state: Payload, stage: TaskStage, client: int
    ) -> Payload | None:
        """Return a query to ``client`` before it trains; None asks nothing."""

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
        """Return the next server state, with the replies by client.

        Called once for each task that clients with a reply start; ``stage`` names it.
        """


class RestoresClients(ABC):
    """A strategy whose state depends on what clients keep."""

    @abstractmethod
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        """Return the server state after a client has lost its own and starts anew."""


class Forgets(ABC):
    """A strategy that can take out again what a client has contributed."""

    @abstractmethod
    def forget(self, state: Payload, client: int, task: int | None) -> Payload:
        """Return the state as if something had never been received.

        Args:
            state: must not be changed in place.
            client: whose contributions are taken out.
            task: of which of its tasks, counted from 0; None for all.

        Raises:
            ConfigError: there is nothing of it in the state.
        """


class SumsUpdates(ABC):
    """A strategy whose server needs no more of a round than sums over its clients.

    With secure aggregation it sees no update, and `aggregate_train` is not called.

    Class attributes:
        weighs_examples: a client counts as often as it has examples, so that the sum is
            told as a mean; otherwise tensors are added up as they are.
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
        """Return tensors of the groups, names, shapes and dtypes of every update.

        Groups of kind ``meta`` stay with the clients. A client may leave out a group
        that has nothing to add, unless examples weigh.
        """

    @abstractmethod
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        """Return the next server state.

        Args:
            state: must not be changed in place.
            stage: of the round.
            total: the sum of the round's updates, or their mean if examples weigh, in
                the dtypes of `summands`; ``num_examples`` is a sum in any case.

        Raises:
            WireError: no honest clients have this sum.
        """


Metrics: TypeAlias = Mapping[ClientTask, Mapping[str, float]]
"""Scalars of clients' updates, by client and the task that it trained on."""


class Explains:
    """A strategy with something to report beside the accuracies."""

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
        """Return what a reader of the results must know, by subject."""
        return {}


class KnowsModel:
    """A strategy that has to know more of the network than what clients share.

    Attributes:
        features: width of what the body returns; set before `init`, like the others.
        classes: logits of a head.
        single_head: one head serves every task.
    """

    features: int
    classes: int
    single_head: bool


class KnowsClasses:
    """A strategy that has to know which classes are learned when, in a single head.

    Attributes:
        classes_until: for each task the places in the head of all that clients learn
            by its end, ascending; for each hidden concept those of all. Set before
            `init`, like the others.
        class_names: of each place.
    """

    classes_until: tuple[tuple[int, ...], ...]
    class_names: tuple[str, ...]


class TrainsOnServer:
    """A strategy that trains on the server, with public data or without any.

    Attributes:
        trainer: made by the class that the declaration names; set before `init`.
    """

    trainer: "ServerTrainer"


class AnswersQueries(ABC):
    """A learner whose strategy is `AsksClients`."""

    @abstractmethod
    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: "TaskData"
    ) -> Payload:
        """Return the reply to a query before a task; ``state`` stays as it is."""


class SelectsModel(ABC):
    """A learner that infers which of several received models suits its data."""

    @abstractmethod
    def select_model(
        self, state: Payload, received: Payload, recent: "Examples"
    ) -> Payload:
        """Return what of ``received`` suits data like ``recent``, for `predict`.

        Called before an evaluation without task identities: all that a client knows
        are a few labelled examples of the present.
        """


class ReplacesHeads(ABC):
    """A learner whose network has other heads than linear layers.

    What of them clients share is in the server's first state, as of any other network.
    """

    @classmethod
    @abstractmethod
    def replace_heads(cls, model: "MultiHeadModel", params: "Params") -> None:
        """Give a freshly initialised network the heads of this algorithm.

        Called wherever the network of a run is made, with the generator seeded by the
        run's seed.

        Args:
            model: whose ``heads`` are replaced, each by a `GrowingHead`.
            params: the hyper-parameters of the algorithm.
        """
