"""FedCurv, client side: a penalty on leaving what the other clients' data need.

Shoham et al., 2019, https://arxiv.org/abs/1910.07796, section 3: client i adds ``lambda
sum_(j != i) (w - w_j)^T diag(I_j) (w - w_j)``, where w_j is the last model of client j
and I_j the Fisher information of its data there. Of all others it needs only the sums U
of the diag(I_j) and V of the diag(I_j) w_j.
"""

from torch import Tensor
from typing_extensions import override

from clients.ewc import diagonal_fisher
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.training.tensors import dense, to_torch
from strategies.fedcurv import FedCurvParams


class FedCurv(LocalTraining[FedCurvParams]):
    """Add ``strength * sum (U w^2 - 2 V w)`` over the shared parameters.

    That is the paper's penalty but for a constant, which here makes it 0 for the model
    that was received. State: no more, since the server takes a client's own part
    out of the sums.
    """

    training_only = ("curvature",)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        device = self.context.device
        groups = ("base", "curvature/fisher", "curvature/weighted")
        self._terms = [
            (weight, *(to_torch(received[group][name], device) for group in groups))
            for name, weight in self.model.named_parameters()
            if name in received["curvature/fisher"]
        ]
        state, update = super().train(state, received, stage, data)
        count, base = self.params.fisher_examples, update.payload["base"]
        fisher = diagonal_fisher(self.model, data.train, stage.task, count)
        weighted = {name: values * dense(base[name]) for name, values in fisher.items()}
        curvature = {"curvature/fisher": fisher, "curvature/weighted": weighted}
        payload = {**update.payload, **curvature}
        return state, Update(payload, update.num_examples, update.metrics)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        # U w^2 - 2 V w less the same of the received x, as a product.
        terms = (((w - x) * (u * (w + x) - 2 * v)).sum() for w, x, u, v in self._terms)
        return super().penalty(rows, hidden) + self.params.strength * sum(terms)
