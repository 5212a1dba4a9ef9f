"""SCAFFOLD, client side: what is known of the drift is taken out of each gradient.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, algorithm 1. Symbols:
x is the received ``base``, y_i what is trained from it, c the received ``control``, c_i
the client's own.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import AnyArray, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches
from fcl_flower.training.loop import StepSize
from fcl_flower.training.tensors import arrays_of, load, to_torch
from strategies.scaffold import ScaffoldParams

CHUNK = 512


class Scaffold(LocalTraining[ScaffoldParams]):
    """Take steps along ``g_i(y_i) - c_i + c``; then let c_i be a mean of the g_i.

    By SGD without momentum the mean over the steps is the ``c_i - c + (x - y_i) / (K
    rate)`` of option II. It is made of the gradients themselves, so that it is one by
    any optimizer: momentum, weight decay, a rate that falls within a round and Adam's
    metric would go into that quotient, and are no drift. Adam takes the corrected
    gradient for the gradient; of that the paper says nothing.

    State besides: ``control``, c_i by shared parameter, kept over tasks.
    """

    training_only = ("control",)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        shared = set(self.model.shared_names())
        weights = {n: w for n, w in self.model.named_parameters() if n in shared}
        own = self._of(weights, state.get("control", received["control"]))
        common = self._of(weights, received["control"])
        corrections = {name: common[name] - own[name] for name in weights}
        start = self._of(weights, received["base"])
        self._terms = [(w, start[n], corrections[n]) for n, w in weights.items()]
        self._sums = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._steps = 0
        gradients = {}
        if self.params.variate == "start":
            gradients = self.gradients(weights, state, received, stage, data.train)
        state, update = super().train(state, received, stage, data)
        if self.params.variate == "steps" and self._steps:
            gradients = {
                name: total / self._steps - corrections[name]
                for name, total in self._sums.items()
            }
        new = gradients or own
        change = arrays_of({name: new[name] - own[name] for name in weights})
        payload = {**update.payload, "control/change": change}
        state = {**state, "control": arrays_of(new)}
        return state, Update(payload, update.num_examples, update.metrics)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        # Its gradient is the correction, and its value 0 where the round starts.
        terms = (((w - x) * c).sum() for w, x, c in self._terms)
        return super().penalty(rows, hidden) + sum(terms)

    @override
    def after_step(self, step_size: StepSize) -> None:
        self._steps += 1
        for name, (weight, _, _) in zip(self._sums, self._terms, strict=True):
            assert weight.grad is not None  # the penalty has one for each
            self._sums[name] += weight.grad

    def gradients(
        self,
        weights: dict[str, torch.nn.Parameter],
        state: Payload,
        received: Payload,
        stage: TaskStage,
        examples: Examples,
    ) -> dict[str, Tensor]:
        """Compute the mean gradient over examples at x, by name; none without any."""
        load(self.model, received["base"])
        load(self.model, state.get("heads", {}))
        self.model.eval()
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        for x, y in batches(examples, CHUNK, seed=None):
            loss = cross_entropy(self.model(x, stage.task), y, reduction="sum")
            found = torch.autograd.grad(
                loss / len(examples.y), list(weights.values()), materialize_grads=True
            )
            for name, gradient in zip(weights, found, strict=True):
                total[name] += gradient
        return total if len(examples.y) else {}

    def _of(
        self, weights: dict[str, torch.nn.Parameter], arrays: Arrays
    ) -> dict[str, Tensor]:
        def one(name: str, known: AnyArray | None) -> Tensor:
            if known is None:
                return torch.zeros_like(weights[name])
            return to_torch(known, self.context.device)

        return {name: one(name, arrays.get(name)) for name in weights}
