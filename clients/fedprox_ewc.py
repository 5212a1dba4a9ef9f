"""FedProx with Elastic Weight Consolidation: two penalties that add up."""

from typing_extensions import override

from clients.ewc import consolidated, ewc_penalty, require_shared
from clients.fedprox import proximal_term
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from strategies.fedprox_ewc import FedProxEwcParams


class FedProxEwc(LocalTraining[FedProxEwcParams]):
    """A learner with the proximal term of FedProx and the penalty of EWC.

    The penalty is ``mu / 2 * ||w - w_global||^2 + strength / 2 * sum F (w -
    anchor)^2``. The first term holds the client near the global model, the second near
    its own last task.
    """

    def __init__(
        self, params: FedProxEwcParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        super().__init__(params, model, context)
        require_shared(model, "EWC")

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        turn, model = Turn(state, received, stage, data), self.model
        params = self.params
        penalties = [
            ewc_penalty(model, state, params.strength),
            proximal_term(model, received["base"], params.mu),
        ]
        state, update = self.fit_locally(turn, penalties=penalties)
        return consolidated(model, turn, params, state, update), update
