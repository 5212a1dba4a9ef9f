"""EWC: a penalty holds each weight back in proportion to its use for old tasks.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796, equation 3. There is
one running Fisher information and one anchor as in online EWC (Schwarz et al., ICML
2018, https://arxiv.org/abs/1805.06370, section 3.2). So the state does not grow with
the number of tasks.
"""

from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import Array, Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, to_numpy, to_torch
from strategies.ewc import EwcParams

E = TypeVar("E", bound=EwcParams)


class Ewc(LocalTraining[E]):
    """A learner that adds ``strength / 2 * sum F (w - anchor)^2`` to the loss.

    The sum is over the shared parameters.

    State beside that of `LocalTraining`: ``fisher`` and ``anchor``, refreshed when a
    task ends.
    """

    @override
    def begin(self, turn: Turn) -> Examples:
        device, state = self.context.device, turn.state
        fisher, anchor = state.get("fisher", {}), state.get("anchor", {})
        self._terms = [
            (weight, to_torch(fisher[name], device), to_torch(anchor[name], device))
            for name, weight in self.model.named_parameters()
            if name in fisher
        ]
        return super().begin(turn)

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        terms = (f * (w - anchor).square() for w, f, anchor in self._terms)
        own = self.params.strength / 2 * sum(term.sum() for term in terms)
        return super().penalty(rows, hidden) + own

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        if turn.stage.ends_task:
            count, task = self.params.fisher_examples, turn.stage.task
            new = diagonal_fisher(self.model, turn.data.train, task, count)
            for name, values in turn.state.get("fisher", {}).items():
                new[name] = self.params.decay * dense(values) + new[name]
            state = {**state, "fisher": new, "anchor": update.payload["base"]}
        return super().finish(turn, state, update)


def diagonal_fisher(
    model: MultiHeadModel, examples: Examples, task: int, at_most: int
) -> dict[str, Array]:
    """Estimate the diagonal of the empirical Fisher information, by shared parameter.

    Kirkpatrick et al., section 2.1. It is the mean squared gradient of the
    log-likelihood of the true label, over the first ``at_most`` examples. Examples are
    taken one by one, since a batch's gradient hides single ones. Without examples it is
    zero.
    """
    model.eval()
    shared = set(model.shared_names())
    weights = {n: w for n, w in model.named_parameters() if n in shared}
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    count = min(len(examples.y), at_most)
    for i in range(count):
        logits = model(examples.x[i : i + 1], task)
        loss = cross_entropy(logits, examples.y[i : i + 1])
        gradients = torch.autograd.grad(
            loss, list(weights.values()), materialize_grads=True
        )
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += gradient.square()
    return {name: to_numpy(t / max(count, 1)) for name, t in total.items()}
