"""Sequential training of one model that never meets another, without federation."""

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.training.tensors import snapshot


class Local(LocalTraining[Params]):
    """A learner that trains from its own kept model, as in local-only FedAvg.

    State beside that of `LocalTraining`: ``base``, the client's own model.
    """

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, update = super().train(turn._replace(received=turn.state))
        kept = {**state, "base": update.payload["base"]}
        return kept, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        return super().predict(state, state, task, x)
