"""FedCurv, client side: a penalty on weights that leave what other clients' data need.

Shoham et al., 2019, https://arxiv.org/abs/1910.07796, section 3. Client i adds ``lambda
sum_(j != i) (w - w_j)^T diag(I_j) (w - w_j)``. There w_j is the last model of client j,
and I_j the Fisher information of its data at w_j. The client needs only two sums over
all others: U of the diag(I_j), and V of the diag(I_j) w_j.
"""

from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from clients.ewc import diagonal_fisher
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import dense, to_torch
from strategies.fedcurv import FISHER, WEIGHTED, FedCurvParams


class FedCurv(LocalTraining[FedCurvParams]):
    """A learner that adds ``strength * sum (U w^2 - 2 V w)`` to the loss.

    The sum is over the shared parameters. It is the paper's penalty up to a constant,
    which here makes it 0 for the received model. The state needs no group for it, since
    the server takes a client's own part out of the sums.
    """

    training_only = ("curvature",)

    @override
    def begin(self, turn: Turn) -> Examples:
        received, device = turn.received, self.context.device
        self._terms = [
            (
                weight,
                *(
                    to_torch(received[g][name], device)
                    for g in ("base", FISHER, WEIGHTED)
                ),
            )
            for name, weight in self.model.named_parameters()
            if name in received[FISHER]
        ]
        return super().begin(turn)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        # Each term is U w^2 - 2 V w minus its value at the received x, as a product.
        terms = (((w - x) * (u * (w + x) - 2 * v)).sum() for w, x, u, v in self._terms)
        return super().penalty(rows, hidden) + self.params.strength * sum(terms)

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        count, base = self.params.fisher_examples, update.payload["base"]
        fisher = diagonal_fisher(self.model, turn.data.train, turn.stage.task, count)
        weighted = {name: values * dense(base[name]) for name, values in fisher.items()}
        payload = {**update.payload, FISHER: fisher, WEIGHTED: weighted}
        return super().finish(turn, state, replace(update, payload=payload))
