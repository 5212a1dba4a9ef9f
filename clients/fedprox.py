"""FedProx: a proximal term pulls local training towards the received model.

Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, equation 2.
"""

from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.data.examples import Examples
from fcl_flower.training.tensors import to_torch
from strategies.fedprox import FedProxParams

F = TypeVar("F", bound=FedProxParams)


class FedProx(LocalTraining[F]):
    """A learner that adds ``mu / 2 * ||w - w_global||^2`` to the loss.

    The norm is over the shared parameters. As the first of several base classes it adds
    to the penalty of the next one.
    """

    @override
    def begin(self, turn: Turn) -> Examples:
        shared = set(self.model.shared_names())
        self._pairs = [
            (weight, to_torch(turn.received["base"][name], self.context.device))
            for name, weight in self.model.named_parameters()
            if name in shared
        ]
        return super().begin(turn)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        distance = sum((w - center).square().sum() for w, center in self._pairs)
        return super().penalty(rows, hidden) + self.params.mu / 2 * distance
