"""FedProx: a proximal term pulls local training towards the received model.

Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, equation 2.
"""

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Penalty, Turn
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import to_torch
from strategies.fedprox import FedProxParams


class FedProx(LocalTraining[FedProxParams]):
    """A learner that adds `proximal_term` to the loss."""

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        near = proximal_term(self.model, turn.received["base"], self.params.mu)
        return self.fit_locally(turn, penalties=[near])


def proximal_term(model: MultiHeadModel, center: Arrays, mu: float) -> Penalty:
    """Build ``mu / 2 * ||w - w_global||^2``, over the shared parameters."""
    shared = set(model.shared_names())
    pairs = [
        (weight, to_torch(center[name], str(weight.device)))
        for name, weight in model.named_parameters()
        if name in shared
    ]

    def term() -> Tensor | float:
        return mu / 2 * sum((w - start).square().sum() for w, start in pairs)

    return term
