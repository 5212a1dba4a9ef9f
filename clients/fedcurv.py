"""FedCurv, client side: a penalty on weights that leave what other clients' data need.

Shoham et al., 2019, https://arxiv.org/abs/1910.07796, section 3. Client i adds ``lambda
sum_(j != i) (w - w_j)^T diag(I_j) (w - w_j)``. There w_j is the last model of client j,
and I_j the Fisher information of its data at w_j. The client needs only two sums over
all others: U of the diag(I_j), and V of the diag(I_j) w_j.
"""

from torch import Tensor
from typing_extensions import override

from clients.ewc import diagonal_fisher, require_shared
from fcl_flower.algorithms.local_training import LocalTraining, Penalty, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, to_torch
from strategies.fedcurv import FISHER, WEIGHTED, FedCurvParams


class FedCurv(LocalTraining[FedCurvParams]):
    """A learner that adds `curvature_penalty` to the loss.

    The state needs no group for it, since the server takes a client's own part out of
    the sums.
    """

    @override
    def prepare(self) -> None:
        require_shared(self.model, "FedCurv")

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        pull = curvature_penalty(self.model, received, self.params.strength)
        state, update = self.fit_locally(turn, penalties=[pull])
        count, base = self.params.fisher_examples, update.payload["base"]
        fisher = diagonal_fisher(self.model, data.train, stage.task, count)
        weighted = {name: values * dense(base[name]) for name, values in fisher.items()}
        return state, update.with_groups({FISHER: fisher, WEIGHTED: weighted})


def curvature_penalty(
    model: MultiHeadModel, received: Payload, strength: float
) -> Penalty:
    """Build ``strength * sum (U w^2 - 2 V w)``, over the shared parameters.

    It is the paper's penalty up to a constant, which here makes it 0 for the received
    model.
    """
    terms = [
        (
            weight,
            *(
                to_torch(received[group][name], str(weight.device))
                for group in ("base", FISHER, WEIGHTED)
            ),
        )
        for name, weight in model.named_parameters()
        if name in received[FISHER]
    ]

    def penalty() -> Tensor | float:
        # Each term is U w^2 - 2 V w minus its value at the received x, as a product.
        return strength * sum(
            ((w - x) * (u * (w + x) - 2 * v)).sum() for w, x, u, v in terms
        )

    return penalty
