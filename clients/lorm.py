"""LoRM, client side: one factor of each layer's change is trained, then the other.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961. Symbols: B is ``NAME.up``, A
is ``NAME.down``, Gamma is a group of grams.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.algorithms.finished_tasks import TASK
from fcl_flower.algorithms.local_training import fit_classes
from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import AnyArray, Arrays, Payload, Update
from fcl_flower.models.adapters import LoraTransformer, squares
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.analytic.sums import upper_half
from strategies.lorm import (
    ADAPTERS,
    HEAD,
    HEADS,
    KNOWN,
    TOKENS,
    LormParams,
    adapted_layers,
    merged_layer,
    trained_factor,
)

NEVER = -1e4
"""The logit of a class that no client has learned; it is finite, so that losses are."""
HEAD_ALPHA = 0.5
"""The factor of the head's Gram matrix off its diagonal. It is below 1, so that the
matrix is regular if no feature is always 0."""
CHUNK = 64
"""The number of samples in one pass."""


def lora_of(model: MultiHeadModel) -> LoraTransformer:
    """Return the body of a model whose layers `adapted_layers` lists."""
    if not isinstance(model.body, LoraTransformer):
        raise ContractError(
            f"LoRA: got body {type(model.body).__name__}, expected LoraTransformer"
        )
    return model.body


def with_told(labels: Tensor, reported: AnyArray) -> Tensor:
    """List the classes of labels and those with a 1 in ``reported``, ascending."""
    more = torch.from_numpy(np.flatnonzero(np.asarray(reported))).to(labels.device)
    classes: Tensor = torch.unique(torch.cat([labels, more]))
    return classes


def close_unknown(head: nn.Linear, known: AnyArray) -> None:
    """Set the logits of classes that no client has learned to `NEVER` for good."""
    unknown = ~to_torch(known, str(head.weight.device)).bool()
    head.weight[unknown] = 0.0
    head.bias[unknown] = NEVER


class Lorm(ClientLearner[LormParams]):
    """A learner that trains the factor whose turn it is, and the task's head rows.

    State: adapters and grams of the finished tasks, as they were received.
    """

    balances = ("weights", "batches")
    augments = True

    @override
    def prepare(self) -> None:
        self._layers = adapted_layers(self.model.shared_names())
        self._body = lora_of(self.model)

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, _, data = turn
        factor = trained_factor(received)
        heads = received.get(HEADS, {})
        load(self.model, {**received[ADAPTERS], **heads})
        classes: Tensor | None = None
        if heads:
            told = received[TASK]["classes"]
            alone = self.params.contrast == "own"
            classes = with_told(data.train.y, np.zeros(0) if alone else told)
        trained = {layer + factor for layer in self._layers} | {*heads}
        # The optimizer starts anew, since moments of one factor do not help the other.
        done = fit_classes(self, turn, trained, classes)
        update: dict[str, Arrays] = {
            "adapters": snapshot(self.model, [n + factor for n in self._layers]),
            "grams": self._grams(data.train.x, head=bool(heads)),
        }
        if classes is not None:  # rows of other classes are not sent
            places, rows = classes.cpu().numpy(), snapshot(self.model, heads)
            update["heads"] = {"classes": places, **{n: rows[n][places] for n in rows}}
        finished = {g: a for g, a in received.items() if g.split("/")[-1].isdigit()}
        metrics = done.metrics()
        return {**state, **finished}, Update(update, len(data.train.y), metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of all classes, with the merged changes of all tasks.

        The task is not used. A class that no client has learned has the logit `NEVER`.
        """
        everything, device = {**state, **received}, str(x.device)
        merged = []
        for layer, change in zip(self._layers, self._body.changes, strict=True):
            down, up = merged_layer(everything, layer)
            merged.append(
                (
                    to_torch(down.astype(np.float32), device),
                    to_torch(up.astype(np.float32), device),
                )
            )
            with torch.no_grad():
                change.up.zero_()  # the merged change includes the current task's
        heads = received.get(HEADS, {})
        load(self.model, heads)
        with self._body.beside(merged):
            logits = predict_logits(self.model, x, CHUNK)
        if not heads:
            return logits
        known = to_torch(received[KNOWN]["classes"], device).bool()
        return logits.masked_fill(~known, NEVER)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        heads = received.get(HEADS, {})
        load(self.model, heads)
        network = self.model.network(task)
        body = cast(LoraTransformer, network.body)
        for layer, change in zip(self._layers, body.changes, strict=True):
            down, up = merged_layer({**state, **received}, layer)
            change.down, change.up = (
                nn.Parameter(to_torch(part.astype(np.float32)), requires_grad=False)
                for part in (down, up)
            )
        if heads:
            known = received[KNOWN]["classes"]
            close_unknown(cast(nn.Linear, network.head), known)
        return network

    def _grams(self, inputs: Tensor, *, head: bool) -> Arrays:
        """Average the squares of the layers' inputs, and the head's Gram matrix."""
        x = frozen_features(self.model, inputs)
        self.model.eval()
        with torch.no_grad(), self._body.observed(squares) as seen:
            parts = [
                self._body(x[at : at + CHUNK]).double().cpu()
                for at in range(0, len(x), CHUNK)
            ]
        grams = {
            layer: (total.numpy() / max(seen.tokens, 1)).astype(np.float32)
            for layer, total in zip(self._layers, seen.sums, strict=True)
        }
        grams[TOKENS] = np.asarray(seen.tokens, np.int64)
        if head:
            features = torch.cat(parts).numpy()
            gram = features.T @ features / max(len(features), 1)
            gram[~np.eye(len(gram), dtype=bool)] *= HEAD_ALPHA
            grams[HEAD] = upper_half(gram).astype(np.float32)
        return grams
