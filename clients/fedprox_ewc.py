"""FedProx with Elastic Weight Consolidation: two penalties that add up."""

from typing_extensions import override

from clients.ewc import Ewc
from clients.fedprox import proximal_term
from fcl_flower.algorithms.local_training import Penalty, Turn
from fcl_flower.core.types import Payload, Update
from strategies.fedprox_ewc import FedProxEwcParams


class FedProxEwc(Ewc):
    """A learner with the penalty of EWC and the proximal term of FedProx.

    The penalty is ``mu / 2 * ||w - w_global||^2 + strength / 2 * sum F (w -
    anchor)^2``. The first term holds the client near the global model, the second near
    its own last task.
    """

    params: FedProxEwcParams

    @override
    def train(self, turn: Turn, *others: Penalty) -> tuple[Payload, Update]:
        near = proximal_term(self.model, turn.received["base"], self.params.mu)
        return super().train(turn, near, *others)
