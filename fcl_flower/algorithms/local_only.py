"""Any algorithm without communication: the reference for the gain of federation.

Each client runs the server side itself, as a federation of one client. Only the call to
train and the scores travel. FedWeIT local-only is APD without consolidation.
"""

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from fcl_flower.algorithms.base import (
    ClientLearner,
    ClientQueries,
    Params,
    ServerQueries,
    ServerStrategy,
    Turn,
)
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.training.tensors import snapshot

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fcl_flower.data.examples import Examples, TaskData

SERVER = "server:"


class LocalOnlyLearner(ClientLearner[Params]):
    """Both sides of an algorithm in one client; the server side knows no other client.

    State: the learner's, and that of the server side in groups ``server:NAME``.
    """

    def __init__(
        self, learner: ClientLearner[Any], strategy: ServerStrategy[Any]
    ) -> None:
        """Wrap a learner and the server side that belongs to it."""
        super().__init__(Params(), learner.model, learner.context)
        self.temporary_state = learner.temporary_state
        self.needs_task = learner.needs_task
        self._learner = learner
        self._strategy = strategy

    @override
    def init(self) -> Payload:
        model = snapshot(self.model, self.model.shared_names())
        return _join(self._strategy.init(model), self._learner.init())

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
        server, own = _split(state)
        client = self.context.client
        server = self._asked(server, own, stage, data)
        request = self._strategy.send(server, stage, client)
        own, update = self._learner.train(Turn(own, request, stage, data))
        server = self._strategy.combine(server, stage, {client: update})
        return _join(server, own), Update({}, update.num_examples, update.metrics)

    @override
    def select_model(
        self, state: Payload, received: Payload, samples: "Examples"
    ) -> Payload:
        server, own = _split(state)
        request = self._request(server, task=0)
        return self._learner.select_model(own, request, samples)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: "Tensor"
    ) -> "Tensor":
        server, own = _split(state)
        request = received or self._request(server, task)
        return self._learner.predict(own, request, task, x)

    @override
    def predictor(
        self, state: Payload, received: Payload, task: int
    ) -> "nn.Module | None":
        server, own = _split(state)
        request = received or self._request(server, task)
        return self._learner.predictor(own, request, task)

    def _asked(
        self, server: Payload, own: Payload, stage: TaskStage, data: "TaskData"
    ) -> Payload:
        """Let the server side ask its query, if it has one."""
        strategy, learner, client = self._strategy, self._learner, self.context.client
        if isinstance(strategy, ServerQueries) and isinstance(learner, ClientQueries):
            question = strategy.configure_query(server, stage, client)
            if question is not None:
                answer = learner.answer_query(Turn(own, question, stage, data))
                return strategy.aggregate_query(server, stage, {client: answer})
        return server

    def _request(self, server: Payload, task: int) -> Payload:
        """Select what the server side would send for an evaluation."""
        # The evaluation follows a task's last round, so no task starts in it.
        stage = TaskStage(round=0, task=task, starts_task=False, ends_task=True)
        return self._strategy.send_to_predict(server, stage, self.context.client)


def _join(server: Payload, own: Payload) -> Payload:
    return {**{SERVER + group: arrays for group, arrays in server.items()}, **own}


def _split(state: Payload) -> tuple[Payload, Payload]:
    server = {
        group.removeprefix(SERVER): arrays
        for group, arrays in state.items()
        if group.startswith(SERVER)
    }
    own = {g: arrays for g, arrays in state.items() if not g.startswith(SERVER)}
    return server, own
