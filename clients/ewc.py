"""EWC: a penalty holds each weight back in proportion to its use for old tasks.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796, equation 3. There is
one running Fisher information and one anchor as in online EWC (Schwarz et al., ICML
2018, https://arxiv.org/abs/1805.06370, section 3.2). So the state does not grow with
the number of tasks.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Penalty, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Array, Payload, Update
from fcl_flower.data.examples import Examples, rows_of
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, to_numpy, to_torch
from strategies.ewc import EwcParams


class Ewc(LocalTraining[EwcParams]):
    """A learner that holds weights back by `ewc_penalty`.

    State beside that of `LocalTraining`: ``fisher`` and ``anchor``, refreshed when a
    task ends.
    """

    @override
    def prepare(self) -> None:
        require_shared(self.model, "EWC")

    @override
    def train(self, turn: Turn, *others: Penalty) -> tuple[Payload, Update]:
        """Train by the penalty and ``others``, and consolidate a finished task.

        The Fisher information then becomes ``decay * F + F_task``.
        """
        params, (before, _, stage, data) = self.params, turn
        pull = ewc_penalty(self.model, before, params.strength)
        state, update = self.fit_locally(turn, penalties=[pull, *others])
        if not stage.ends_task:
            return state, update
        count = params.fisher_examples
        fisher = diagonal_fisher(self.model, data.train, stage.task, count)
        for name, values in before.get("fisher", {}).items():
            fisher[name] = params.decay * dense(values) + fisher[name]
        state = {**state, "fisher": fisher, "anchor": update.payload["base"]}
        return state, update


def require_shared(model: MultiHeadModel, method: str) -> None:
    """Refuse a model of which clients share no trained weights."""
    shared = {*model.shared_names()}
    if not shared & {n for n, w in model.named_parameters() if w.requires_grad}:
        raise ConfigError(
            "model: got a network whose clients share no trained weights, expected one "
            f"that shares some, or model.head 'single': {method} holds no others"
        )


def ewc_penalty(model: MultiHeadModel, state: Payload, strength: float) -> Penalty:
    """Build ``strength / 2 * sum F (w - anchor)^2``, over the shared parameters."""
    fisher, anchor = state.get("fisher", {}), state.get("anchor", {})
    terms = [
        (weight, *(to_torch(of[name], str(weight.device)) for of in (fisher, anchor)))
        for name, weight in model.named_parameters()
        if name in fisher
    ]

    def penalty() -> Tensor | float:
        return strength / 2 * sum((f * (w - a).square()).sum() for w, f, a in terms)

    return penalty


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
        x, y = rows_of(examples, torch.tensor([i]))
        loss = cross_entropy(model(x, task), y)
        gradients = torch.autograd.grad(
            loss, list(weights.values()), materialize_grads=True
        )
        for name, gradient in zip(total, gradients, strict=True):
            total[name] += gradient.square()
    return {name: to_numpy(t / max(count, 1)) for name, t in total.items()}
