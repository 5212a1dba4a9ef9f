"""FedProx with Stable SGD: a proximal term, and a rate that falls between tasks."""

from typing_extensions import override

from clients.fedprox import proximal_term
from clients.stable_sgd import decayed
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from strategies.fedprox_ssgd import FedProxSsgdParams


class FedProxSsgd(LocalTraining[FedProxSsgdParams]):
    """A learner with the proximal term of FedProx and the rate of Stable SGD."""

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        params = self.params
        return self.fit_locally(
            Turn(state, received, stage, data),
            penalties=[proximal_term(self.model, received["base"], params.mu)],
            training=decayed(self.context.training, params, stage.task),
        )
