"""FedProx-APD, client side: APD that goes on from received shared weights.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, a baseline of tables 1 to 3.
APD's loss and ``mu / 2 |sigma - sigma_G|^2`` (Li et al., MLSys 2020, equation 2). Old
adapters follow the received sigma as they do one that was learned.
"""

from torch import Tensor
from typing_extensions import override

from clients.apd import Apd, ApdTasks
from clients.fedweit.client import with_global_base
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from strategies.fedprox_apd import FedProxApdParams


class FedProxApd(Apd[FedProxApdParams]):
    """Learn from the received sigma, and send it; the state is that of `ApdTasks`."""

    def __init__(
        self, params: FedProxApdParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Refuse a model in which there is nothing to decompose."""
        super().__init__(params, model, context)
        self.tasks = ApdTasks(params, model, context, params.mu)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        return self.tasks.train(state, received, stage, data)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        state = {**state, "base": with_global_base(state["base"], received["base"])}
        return super().predict(state, received, task, x)
