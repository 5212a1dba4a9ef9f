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

from clients.icarl import Icarl, icarl_loss
from fcl_flower.algorithms.local_training import Batch, Turn
from fcl_flower.algorithms.teacher import Teacher, begins_task
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.training.distillation import Outputs
from fcl_flower.training.feature_cache import frozen_features
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
    def fit_icarl(
        self, turn: Turn, examples: Examples, teacher: Teacher, taught: Outputs | None
    ) -> tuple[Payload, Update]:
        """Train by iCaRL's loss, with neighbours x_j, which have no gradient.

        The probability of a class without distillation is ``(p(x) + mean_j p(x_j)) /
        2``.
        """
        device, params = self.context.device, self.params
        momentum = _momentum(turn, self.model.features)
        now = to_torch(momentum["now"], device)
        old, _, known = teacher.places(device)
        distilled = old[~torch.isin(old, turn.data.train.y)]
        labelled = known[~torch.isin(known, distilled)]
        near: Tensor | None = None
        if taught is not None:
            x = frozen_features(self.model, examples.x)
            new = ~torch.isin(examples.y, distilled)
            near = neighbours(taught.hidden, new, params.neighbours)

        def loss(batch: Batch) -> Tensor:
            nonlocal now
            if teacher.teaches:
                mean = batch.features.detach().float().mean(0)
                now = params.momentum * now + mean
            if near is not None:
                logits = batch.logits.float()
                own = torch.sigmoid(logits)[:, labelled]
                others = self._mean_answers(x, near[batch.rows])[:, labelled]
                averaged = torch.logit((own + others) / 2, eps=SMALLEST)
                logits = logits.index_copy(1, labelled, averaged)
                batch = batch._replace(logits=logits)
            answers = None if taught is None else taught.logits[batch.rows]
            return icarl_loss(batch, known, distilled, answers)

        state, update = self.fit_locally(turn, examples, loss=loss)
        momentum = {"before": momentum["before"], "now": to_numpy(now)}
        return {**state, "momentum": momentum}, update

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
    def _mean_answers(self, x: Tensor, near: Tensor) -> Tensor:
        logits = self.model.heads[0](self.model.body(x[near.flatten()]))
        each = torch.sigmoid(logits.float()).reshape(*near.shape, -1)
        return each.mean(1)


def _momentum(turn: Turn, features: int) -> Arrays:
    """Find the sums of the task before and of the task so far, (features,) each."""
    none = np.zeros(features, np.float32)
    momentum = turn.state.get("momentum", {"before": none, "now": none})
    if begins_task(turn.state, turn.stage):
        return {"before": momentum["now"], "now": none}
    if turn.stage.starts_task:  # the client's earlier update of the task was lost
        return {"before": momentum["before"], "now": none}
    return momentum


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
