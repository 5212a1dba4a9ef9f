"""FedProx with Stable SGD: a proximal term, and a rate that falls between tasks."""

from typing_extensions import override

from clients.fedprox import proximal_term
from clients.stable_sgd import StableSgd
from fcl_flower.algorithms.local_training import Penalty, Turn
from fcl_flower.core.types import Payload, Update
from strategies.fedprox_ssgd import FedProxSsgdParams


class FedProxSsgd(StableSgd):
    """A learner with the proximal term of FedProx and the rate of Stable SGD."""

    params: FedProxSsgdParams

    @override
    def train(self, turn: Turn, *penalties: Penalty) -> tuple[Payload, Update]:
        near = proximal_term(self.model, turn.received["base"], self.params.mu)
        return super().train(turn, near, *penalties)
