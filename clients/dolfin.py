"""DOLFIN, client side: the second factor is trained behind a fixed first one.

Moussadek et al., 2025, https://arxiv.org/abs/2510.13567, after InfLoRA (Liang and Li,
CVPR 2024). Symbols: A is ``NAME.down``, B is ``NAME.up``, G is a group of grams; see
`strategies.dolfin`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from clients.lorm import CHUNK, NEVER, close_unknown, lora_of, with_told
from fcl_flower.algorithms.base import ClientLearner, ClientQueries, Turn
from fcl_flower.algorithms.finished_tasks import TASK
from fcl_flower.algorithms.head_rows import BIAS, WEIGHT, rows_of
from fcl_flower.algorithms.local_training import fit_classes
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.models.adapters import LoraTransformer, gram
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.analytic.sums import upper_half
from strategies.dolfin import (
    ADAPTERS,
    CLASSES,
    GRAMS,
    DolfinParams,
    factors_of,
    pair_of,
    unfit,
)
from strategies.lorm import DOWN, HEADS, KNOWN, TOKENS, UP, adapted_layers


class Dolfin(ClientLearner[DolfinParams], ClientQueries):
    """A learner that trains B and the task's rows of the head.

    State: the factors of the finished tasks, as they were received.
    """

    balances = ("weights", "batches")
    augments = True

    @override
    def prepare(self) -> None:
        self._layers = adapted_layers(self.model.shared_names())
        self._body = lora_of(self.model)
        if len(self._layers) != 2 * len(self._body.blocks[self._body.first :]):
            raise unfit()

    @override
    def answer_query(self, turn: Turn) -> Payload:
        state, question, _, data = turn
        labels = np.unique(data.train.y.cpu().numpy())
        own = np.zeros(self.model.classes, np.uint8)
        own[labels] = 1
        with self._loaded({**state, **question}):
            grams = self._grams(frozen_features(self.model, data.train.x))
        return {GRAMS: grams, CLASSES: {"classes": own}}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, _, data = turn
        classes = with_told(data.train.y, received[TASK]["classes"])
        ups = [layer + UP for layer in self._layers]
        trained = {*ups, WEIGHT, BIAS}
        load(self.model, received[HEADS])
        with self._loaded({**state, **received}):
            done = fit_classes(self, turn, trained, classes)
        places = classes.cpu().numpy()
        rows = snapshot(self.model, (WEIGHT, BIAS))
        update: Payload = {
            ADAPTERS: snapshot(self.model, ups),
            HEADS: rows_of(rows, places),
        }
        finished = {g: a for g, a in received.items() if g.split("/")[-1].isdigit()}
        metrics = done.metrics()
        return {**state, **finished}, Update(update, len(data.train.y), metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of all classes, with the changes of all tasks.

        The task is not used. A class that no client has learned has the logit `NEVER`.
        """
        load(self.model, received[HEADS])
        known = to_torch(received[KNOWN]["classes"], str(x.device)).bool()
        with self._loaded({**state, **received}):
            logits = predict_logits(self.model, x, CHUNK)
        return logits.masked_fill(~known, NEVER)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        load(self.model, received[HEADS])
        with self._loaded({**state, **received}):
            network = self.model.network(task)
        cast(LoraTransformer, network.body).merge()
        close_unknown(cast(nn.Linear, network.head), received[KNOWN]["classes"])
        return network

    @contextmanager
    def _loaded(self, payload: Payload) -> Iterator[None]:
        """Let the body compute with all tasks' factors while the context is open."""
        now, fixed, device = dict[str, Array](), [], self.context.device
        for layer in self._layers:
            factors = factors_of(payload, layer)
            down, up = factors.pop("now")
            now |= {layer + DOWN: down, layer + UP: up}
            old_downs = [down[:0], *(a for a, _ in factors.values())]
            old_ups = [up[:, :0], *(b for _, b in factors.values())]
            fixed.append(
                (
                    to_torch(np.concatenate(old_downs), device),
                    to_torch(np.concatenate(old_ups, axis=1), device),
                )
            )
        load(self.model, now)
        with self._body.beside(fixed):
            yield

    def _grams(self, x: Tensor) -> Arrays:
        self.model.eval()
        with torch.no_grad(), self._body.observed(gram, step=2) as seen:
            for at in range(0, len(x), CHUNK):
                self._body(x[at : at + CHUNK])
        means = {
            pair_of(layer): upper_half(total.numpy() / max(seen.tokens, 1))
            for layer, total in zip(self._layers[::2], seen.sums, strict=True)
        }
        halves = {pair: half.astype(np.float32) for pair, half in means.items()}
        return {**halves, TOKENS: np.asarray(seen.tokens, np.int64)}
