"""SCAFFOLD, client side: control variates remove the known drift from each gradient.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1. Symbols: x
is the received ``base``, y_i the model trained from it, c the received ``control``, c_i
the client's own.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples, batches
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

    training_only = ("control",)

    @override
    def begin(self, turn: Turn) -> Examples:
        shared = set(self.model.shared_names())
        named = self.model.named_parameters()
        self._weights = {name: w for name, w in named if name in shared}
        common, start = turn.received["control"], self._of(turn.received["base"])
        self._own = self._of(turn.state.get("control", common))
        self._corrections = {n: c - self._own[n] for n, c in self._of(common).items()}
        self._terms = [
            (weight, start[name], self._corrections[name])
            for name, weight in self._weights.items()
        ]
        self._sums = {n: torch.zeros_like(w) for n, w in self._weights.items()}
        self._steps = 0
        if self.params.variate == "start":
            self._at_start = self._gradients(turn)
        return super().begin(turn)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        # The term's gradient is the correction. Its value is 0 at the round's start.
        terms = (((w - x) * c).sum() for w, x, c in self._terms)
        return super().penalty(rows, hidden) + sum(terms)

    @override
    def after_step(self, step_size: StepSize) -> None:
        self._steps += 1
        for name, weight in self._weights.items():
            assert weight.grad is not None  # the penalty has a gradient for each
            self._sums[name] += weight.grad

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        new = self._own
        if self.params.variate == "start":
            new = self._at_start or new
        elif self._steps:
            means = {name: total / self._steps for name, total in self._sums.items()}
            new = {name: means[name] - c for name, c in self._corrections.items()}
        change = arrays_of({name: c - self._own[name] for name, c in new.items()})
        payload = {**update.payload, "control/change": change}
        state = {**state, "control": arrays_of(new)}
        return super().finish(turn, state, replace(update, payload=payload))

    def _gradients(self, turn: Turn) -> dict[str, Tensor]:
        """Compute the mean gradient over examples at x, by name; empty for none."""
        load(self.model, turn.received["base"])
        load(self.model, turn.state.get("heads", {}))
        self.model.eval()
        weights, examples = self._weights, turn.data.train
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        by_class: Tensor | None = None
        if self.training(turn.stage).balanced and len(examples.y):
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

    def _of(self, arrays: Arrays) -> dict[str, Tensor]:
        """Convert arrays to tensors of the weights; zeros where an array is missing."""
        return {
            name: to_torch(arrays[name], self.context.device)
            if name in arrays
            else torch.zeros_like(weight)
            for name, weight in self._weights.items()
        }
