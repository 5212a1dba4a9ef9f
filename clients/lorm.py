"""LoRM, client side: one factor of each layer's change is trained, then the other.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961. Symbols: B is ``NAME.up``, A
is ``NAME.down``, Gamma is a group of grams.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.base import ClientContext, ClientLearner
from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.adapters import LoraTransformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.loop import Fit, FitResult, Score, fit, score
from fcl_flower.training.tensors import load, snapshot, to_torch
from strategies.lorm import (
    ADAPTERS,
    BIAS,
    HEAD,
    HEADS,
    KNOWN,
    TASK,
    TOKENS,
    WEIGHT,
    LormParams,
    adapted_layers,
    damped,
    merged_layer,
    trained_factor,
    upper_half,
)

NEVER = -1e4
"""The logit of a class that nobody has learned; finite, so that losses are."""
HEAD_ALPHA = 0.5
"""What the head's Gram matrix is multiplied by off its diagonal, in [0, 1]."""
_CHUNK = 64


class Lorm(ClientLearner[LormParams]):
    """Train the factor whose turn it is, and the task's rows of the head.

    State: adapters and grams of the finished tasks, as they were received.
    """

    def __init__(
        self, params: LormParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Find the layers that have a change of low rank."""
        super().__init__(params, model, context)
        self._layers = adapted_layers(model.shared_names())
        if not isinstance(model.body, LoraTransformer):
            raise ContractError(
                f"LoRM: got body {type(model.body).__name__}, expected LoraTransformer"
            )
        self._body = model.body

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        factor = trained_factor(received)
        load(self.model, {**received[ADAPTERS], **received[HEADS]})
        classes = self._contrasted(received, data.train.y)
        x = frozen_features(self.model, data.train.x)
        done = self._fit(factor, classes, Examples(x, data.train.y), data.valid, stage)
        learned = snapshot(self.model, [layer + factor for layer in self._layers])
        rows = snapshot(self.model, (WEIGHT, BIAS))
        numbers = classes.cpu().numpy()
        update = {
            "adapters": learned,
            "grams": self._grams(x),
            "heads": {
                "classes": numbers,
                **{name: values[numbers] for name, values in rows.items()},
            },
        }
        return {**state, **_finished(received)}, Update(
            update, len(data.train.y), done.metrics()
        )

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of all classes, with what all tasks have learned together.

        The task is not used. A class that nobody has learned has the logit `NEVER`.
        """
        everything = {**state, **received}
        load(self.model, received[HEADS])
        self.model.eval()
        known = to_torch(received[KNOWN]["classes"], str(x.device)).bool()
        for layer, change in zip(self._layers, self._body.changes, strict=True):
            found = merged_layer(everything, layer)
            change.merged = (
                to_torch(found.down.astype(np.float32), str(x.device)),
                to_torch(found.up.astype(np.float32), str(x.device)),
            )
        try:
            with torch.no_grad():
                parts = [
                    self.model(x[at : at + _CHUNK], 0)
                    for at in range(0, len(x), _CHUNK)
                ]
        finally:
            for change in self._body.changes:
                change.merged = None
        shape = (0, len(known))
        logits = torch.cat([*parts, torch.zeros(shape, device=x.device)])
        return logits.masked_fill(~known, NEVER)

    def _contrasted(self, received: Payload, labels: Tensor) -> Tensor:
        own: Tensor = torch.unique(labels)
        if self.params.contrast == "own":
            return own
        told = np.flatnonzero(np.asarray(received[TASK]["classes"]))
        both = torch.cat([own, torch.from_numpy(told).to(own.device)])
        found: Tensor = torch.unique(both)
        return found

    def _fit(
        self,
        factor: str,
        classes: Tensor,
        examples: Examples,
        valid: Examples,
        stage: TaskStage,
    ) -> FitResult:
        model = self.model
        places = torch.full((int(classes.max()) + 1,), -1, device=classes.device)
        places[classes] = torch.arange(len(classes), device=classes.device)
        seen = torch.isin(valid.y, classes)
        x = frozen_features(model, valid.x)
        held = Examples(x[seen], places[valid.y[seen]]) if len(seen) else valid

        def objective(x: Tensor, y: Tensor) -> Tensor:
            model.train()
            return cross_entropy(model(x, 0)[:, classes], y)

        def validate() -> Score:
            model.eval()
            return score(lambda x: model(x, 0)[:, classes], held)

        trained = {layer + factor for layer in self._layers} | {WEIGHT, BIAS}
        # The optimizer starts anew: what it has learned of one factor does not help
        # the other. Rows of other classes are not sent.
        job = Fit(
            parameters={n: p for n, p in model.named_parameters() if n in trained},
            objective=objective,
            examples=Examples(examples.x, places[examples.y]),
            training=self.context.training,
            seed=self.context.seed,
            client=self.context.client,
            round=stage.round,
            validate=validate,
        )
        return fit(job)

    def _grams(self, x: Tensor) -> Arrays:
        self.model.eval()
        with torch.no_grad(), self._body.observed() as seen:
            parts = [
                self._body(x[at : at + _CHUNK]).double().cpu()
                for at in range(0, len(x), _CHUNK)
            ]
        features = torch.cat(parts).numpy()
        gram = features.T @ features / max(len(features), 1)
        half = upper_half(damped(gram, HEAD_ALPHA))
        means: Mapping[str, Array] = {
            layer: (squares.numpy() / max(seen.tokens, 1)).astype(np.float32)
            for layer, squares in zip(self._layers, seen.squares, strict=True)
        }
        return {
            **means,
            TOKENS: np.asarray(seen.tokens, np.int64),
            HEAD: half.astype(np.float32),
        }


def _finished(received: Payload) -> Payload:
    return {
        group: arrays
        for group, arrays in received.items()
        if group.split("/")[-1].isdigit()
    }
