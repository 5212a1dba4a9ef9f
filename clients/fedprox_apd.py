"""FedProx-APD, client side: APD that goes on from received shared weights.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, a baseline of tables 1 to 3.
It minimises APD's loss plus ``mu / 2 |sigma - sigma_G|^2`` (Li et al., MLSys 2020,
equation 2). Old adapters follow the received sigma as they follow a learned one.
"""

import torch
from torch import Tensor
from typing_extensions import override

from clients.apd import Apd, ApdModel
from clients.fedweit.client import with_global_base
from fcl_flower.core.types import Payload, TaskStage
from strategies.fedprox_apd import FedProxApdParams


class FedProxApd(Apd[FedProxApdParams]):
    """A learner that starts from the received sigma, and sends its own."""

    @override
    def build_task_model(self, state: Payload, task: int) -> ApdModel:
        work, mu = super().build_task_model(state, task), self.params.mu
        start, base = self.to_tensors(state["base"]), work.tensors.base

        def pull() -> Tensor:
            moved = [
                (base[name] - there).square().sum() for name, there in start.items()
            ]
            return mu / 2 * torch.stack(moved).sum()

        if mu:
            work.penalty = pull
        return work

    @override
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        return {"base": state["base"]}

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        state = {**state, "base": with_global_base(state["base"], received["base"])}
        return super().predict(state, received, task, x)
