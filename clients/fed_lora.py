"""Federated LoRA, client side: the received base is trained, everything else is fixed.

The rules are in `strategies.fed_lora`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.models.adapters import LoraTransformer
from fcl_flower.training.tensors import load, to_torch
from strategies.fed_lora import ADAPTED, FIXED, FedLoraParams, adapted, residual_of


class FedLora(LocalTraining[FedLoraParams]):
    """A learner that trains LoRA beside fixed changes of the frozen weights.

    A factor that never comes keeps its initial values, which follow from the run's
    seed.
    """

    update_is_model = False  # an update lacks the fixed changes

    @override
    def prepare(self) -> None:
        self._body = self.model.body_of(LoraTransformer, ADAPTED)
        self._layers = adapted(self.model.shared_names())

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        names = self.model.shared_names()
        trained = [name for name in names if name in turn.received["base"]]
        with self._beside(turn.received):
            return self.fit_locally(turn, trained=trained)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        with self._beside(received):
            return super().predict(state, received, task, x)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        load(self.model, {**received["base"], **state.get("heads", {})})
        with self._beside(received):
            network = self.model.network(task)
        cast(LoraTransformer, network.body).merge()
        return network

    @contextmanager
    def _beside(self, received: Payload) -> Iterator[None]:
        load(self.model, received.get(FIXED, {}))
        device = self.context.device
        fixed = [
            tuple(to_torch(matrix, device) for matrix in residual_of(received, layer))
            for layer in self._layers
        ]
        with self._body.beside(fixed):
            yield
