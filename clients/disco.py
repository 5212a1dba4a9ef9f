"""DISCO, client side: the subspace of the client's prompts is trained.

Guo et al., ICCV 2025, https://arxiv.org/abs/2503.12897, section 4. The equations are in
`strategies.disco`.
"""

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.models.language import LanguageModel
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, to_numpy, to_torch
from strategies.disco import (
    FRESH,
    IDENTITY,
    SUBSPACE,
    DiscoParams,
    cosines,
    identities,
    nearest,
    numbers,
)
from strategies.fed_lora import adapted
from strategies.lorm import DOWN, UP


class Disco(LocalTraining[DiscoParams]):
    """A learner that trains one subspace, and predicts with all of them."""

    update_is_model = False  # an update is one subspace
    balances = ()
    augments = False

    @override
    def prepare(self) -> None:
        self._body = self.model.body_of(LanguageModel, "causal-lm")
        self._layers = adapted(self.model.shared_names())

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        received = turn.received
        token = self._body.embed(turn.data.train.x).mean(0)
        identity: Arrays = {"token": to_numpy(token).astype(np.float32)}
        number = nearest(to_numpy(token), identities(received), self.params)
        factors = received.get(f"{SUBSPACE}/{number}", received[FRESH])
        state, update = self.fit_locally(turn._replace(received={"base": factors}))
        return state, update.with_groups({IDENTITY: identity})

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        self.model.eval()
        if not numbers(received):  # before the first aggregation
            raise config_error(
                "round", 0, "a finished round, as no subspace is learned"
            )
        device = str(x.device)
        tokens = identities(received)
        similar = cosines(to_numpy(self._body.embed(x)), tokens)
        weights = torch.from_numpy(similar / self.params.temperature).softmax(1)
        rank = len(np.asarray(received[f"{SUBSPACE}/0"][self._layers[0] + DOWN]))
        gates = weights.float().repeat_interleave(rank, 1).to(device)
        none = {n: np.zeros_like(a) for n, a in received[f"{SUBSPACE}/0"].items()}
        load(self.model, none)  # the subspaces act beside it
        with self._body.beside(self._side_by_side(received, device), gates):
            logits: Tensor = self.model(frozen_features(self.model, x), task)
        return logits

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        expected = "another, as each prompt has weights of its own in DISCO"
        raise config_error("strategy", "disco", expected)

    def _side_by_side(
        self, received: Payload, device: str
    ) -> list[tuple[Tensor, Tensor]]:
        """Put the A of all subspaces below each other, and the B side by side."""
        groups = [received[f"{SUBSPACE}/{k}"] for k in numbers(received)]
        return [
            (
                torch.cat([to_torch(g[layer + DOWN], device) for g in groups]),
                torch.cat([to_torch(g[layer + UP], device) for g in groups], 1),
            )
            for layer in self._layers
        ]
