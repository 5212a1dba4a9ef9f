"""SCAFFOLD, client side: control variates remove the known drift from each gradient.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1. Symbols: x
is the received ``base``, y_i the model trained from it, c the received ``control``, c_i
the client's own.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import batches
from fcl_flower.training.balance import class_weights
from fcl_flower.training.loop import StepSize
from fcl_flower.training.tensors import arrays_of, load, to_torch
from strategies.scaffold import ScaffoldParams

CHUNK = 512


class Scaffold(LocalTraining[ScaffoldParams]):
    """A learner whose steps go along ``g_i(y_i) - c_i + c``.

    After a round c_i becomes a mean of the g_i. By SGD without momentum this is the
    ``c_i - c + (x - y_i) / (K rate)`` of option II. Here the mean is computed from the
    gradients, so that it is one by any optimizer. Momentum, weight decay, a rate that
    falls within a round and Adam's metric would enter that quotient, and they are no
    drift. Adam takes the corrected gradient as its gradient; the paper does not treat
    Adam.

    State beside that of `LocalTraining`: ``control``, c_i by shared parameter, kept
    over tasks.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        params, weights, received = self.params, self._weights(), turn.received
        common = tensors_like(weights, received["control"])
        own = tensors_like(weights, turn.state.get("control", received["control"]))
        start = tensors_like(weights, received["base"])
        corrections = {name: c - own[name] for name, c in common.items()}
        at_start = self._gradients(turn) if params.variate == "start" else {}
        sums = {name: torch.zeros_like(w) for name, w in weights.items()}
        steps = 0

        def correction() -> Tensor | float:
            # The term's gradient is c - c_i. Its value is 0 at the round's start.
            return sum(
                ((weight - start[name]) * corrections[name]).sum()
                for name, weight in weights.items()
            )

        def add_gradients(step_size: StepSize) -> None:
            nonlocal steps
            steps += 1
            for name, weight in weights.items():
                assert weight.grad is not None  # the correction has one for each
                sums[name] += weight.grad

        state, update = self.fit_locally(
            turn, penalties=[correction], after_step=add_gradients
        )
        new = at_start or own
        if params.variate != "start" and steps:
            new = {n: total / steps - corrections[n] for n, total in sums.items()}
        change = arrays_of({name: c - own[name] for name, c in new.items()})
        state = {**state, "control": arrays_of(new)}
        return state, update.with_groups({"control/change": change})

    def _weights(self) -> dict[str, nn.Parameter]:
        shared = set(self.model.shared_names())
        return {n: w for n, w in self.model.named_parameters() if n in shared}

    def _gradients(self, turn: Turn) -> dict[str, Tensor]:
        """Compute the mean gradient over examples at x, by name; empty for none."""
        load(self.model, turn.received["base"])
        load(self.model, turn.state.get("heads", {}))
        self.model.eval()
        weights, examples = self._weights(), turn.data.train
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        by_class: Tensor | None = None
        if self.context.training.balanced and len(examples.y):
            # Balanced batches have the same gradient in expectation.
            by_class = class_weights(examples.y, self.model.classes)
        for x, y in batches(examples, CHUNK, seed=None):
            logits = self.model(x, turn.stage.task)
            loss = cross_entropy(logits, y, by_class, reduction="sum")
            loss = loss / len(examples.y)
            gradients = torch.autograd.grad(
                loss, list(weights.values()), materialize_grads=True
            )
            for name, gradient in zip(weights, gradients, strict=True):
                total[name] += gradient
        return total if len(examples.y) else {}


def tensors_like(weights: Mapping[str, Tensor], arrays: Arrays) -> dict[str, Tensor]:
    """Convert arrays to tensors of the weights; zeros where an array is missing."""
    return {
        name: to_torch(arrays[name], str(weight.device))
        if name in arrays
        else torch.zeros_like(weight)
        for name, weight in weights.items()
    }
