"""DDE on iCaRL: distillation of the colliding effect, removal of the momentum effect.

Hu et al., CVPR 2021, https://arxiv.org/abs/2103.01737, section 4; on iCaRL, averaged as
in FedET's tables (Liu et al., IJCAI 2023, "DDE + iCaRL + FL"). The method rests on two
effects. Given the old model's feature, old and new data depend on each other. So a
sample's nearest neighbours teach the sample's label too. And features drift along with
the data of the training. So predictions leave out the part along that direction.

The paper has softmaxes; iCaRL has sigmoids. Weights, neighbours and sums are those of
the authors' code. A client keeps its direction to itself, as iCaRL's exemplars.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from clients.icarl import Icarl
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import begins_task
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.dde_icarl import DdeIcarlParams

BETA = 0.5
"""The weights of the task's sum, and of the sum of the task before; the paper learns
them."""
CHUNK = 512
SMALLEST = 1e-6
"""The lower bound of probabilities, so that their logits are finite."""


class DdeIcarl(Icarl[DdeIcarlParams]):
    """An iCaRL learner whose labels have neighbours; it predicts without a direction.

    In a client's first task, which has no old model, the method is iCaRL.

    State beside that of `Icarl`: ``momentum``, with two vectors of shape (features,).
    ``now`` is the running sum of the task's mean features, ``before`` that of the task
    before.
    """

    @override
    def begin(self, turn: Turn) -> Examples:
        examples = super().begin(turn)
        none = np.zeros(self.model.features, np.float32)
        kept = turn.state.get("momentum", {"before": none, "now": none})
        if begins_task(turn.state, turn.stage):
            kept = {"before": kept["now"], "now": none}
        elif turn.stage.starts_task:  # its earlier update of the task was lost
            kept = {"before": kept["before"], "now": none}
        self._before = kept["before"]
        self._now = to_torch(kept["now"], self.context.device)
        self._near: Tensor | None = None
        if self._taught is not None:
            self._x = self.inputs(examples.x)
            new = ~torch.isin(examples.y, self._distilled)
            self._near = neighbours(self._taught.hidden, new, self.params.neighbours)
        return examples

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        momentum = {"before": self._before, "now": to_numpy(self._now)}
        return super().finish(turn, {**state, "momentum": momentum}, update)

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Compute iCaRL's loss, with neighbours x_j, which have no gradient.

        The probability of a class without distillation is ``(p(x) + mean_j p(x_j)) /
        2``.
        """
        if self.teacher.teaches:
            mean = hidden.detach().float().mean(0)
            self._now = self.params.momentum * self._now + mean
        if self._taught is None:
            return super().loss(logits, labels, rows, hidden)
        if self._near is not None:
            labelled = self.known[~torch.isin(self.known, self._distilled)]
            own = torch.sigmoid(logits.float())[:, labelled]
            both = (own + self._answers(self._near[rows])[:, labelled]) / 2
            averaged = torch.logit(both, eps=SMALLEST)
            logits = logits.float().index_copy(1, labelled, averaged)
        return super().loss(logits, labels, rows, hidden)

    @override
    def project_features(self, state: Payload, hidden: Tensor) -> Tensor:
        """Remove a share of the features' part along the momentum.

        The result is ``h - alpha beta (<h, u'> u' + <h, u> u)``. Here u is the sum of
        the task and u' that of the task before, both of length 1. This is linear. So a
        head loses what the paper subtracts from the logits. The nearest mean needs it
        too, as it compares angles.
        """
        left = hidden
        for total in state.get("momentum", {}).values():
            unit = normalize(to_torch(total, str(hidden.device)), dim=0)
            along = (hidden @ unit)[:, None] * unit
            left = left - self.params.removal * BETA * along
        return left

    @torch.no_grad()
    def _answers(self, near: Tensor) -> Tensor:
        logits = self.model.heads[0](self.model.body(self._x[near.flatten()]))
        each = torch.sigmoid(logits.float()).reshape(*near.shape, -1)
        return each.mean(1)


def neighbours(features: Tensor, among: Tensor, count: int) -> Tensor | None:
    """Find the places of each sample's nearest neighbours, (N, K), or None for K of 0.

    Args:
        features: shape (N, D); only their directions count.
        among: bool, shape (N,): which samples may be neighbours.
        count: the largest K.
    """
    places = torch.nonzero(among)[:, 0]
    count = min(count, len(places) - 1)
    if count < 1:
        return None
    unit = normalize(features, dim=1)
    nearest = []
    for at in range(0, len(unit), CHUNK):
        # Products round differently, so that duplicates would not be equally near.
        distance = torch.cdist(
            unit[at : at + CHUNK],
            unit[places],
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        own = torch.arange(at, at + len(distance), device=places.device)
        distance = distance.masked_fill(own[:, None] == places, float("inf"))
        nearest.append(places[distance.topk(count, largest=False).indices])
    return torch.cat(nearest)
