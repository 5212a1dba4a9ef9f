"""EWC: each weight is held back in proportion to what old tasks need of it.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796, equation 3, with one
running Fisher information and one anchor as in online EWC (Schwarz et al., ICML 2018,
https://arxiv.org/abs/1805.06370, section 3.2), so that the state does not grow with the
number of tasks.
"""

import torch
from torch import Tensor
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import dense, to_numpy, to_torch
from strategies.ewc import EwcParams


class Ewc(Sgd[EwcParams]):
    """Add ``strength / 2 * sum F (w - anchor)^2`` over the shared parameters.

    State beside that of `Sgd`: ``fisher`` and ``anchor``, refreshed when a task ends.
    """

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        device = self.context.device
        fisher, anchor = state.get("fisher", {}), state.get("anchor", {})
        self._terms = [
            (weight, to_torch(fisher[name], device), to_torch(anchor[name], device))
            for name, weight in self.model.named_parameters()
            if name in fisher
        ]
        state, update = super().train(state, received, stage, data)
        if stage.ends_task:
            new = self.fisher(data.train, stage.task)
            if fisher:
                new = {
                    name: self.params.decay * dense(fisher[name]) + dense(values)
                    for name, values in new.items()
                }
            state = {**state, "fisher": new, "anchor": update.payload["base"]}
        return state, update

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        terms = (f * (w - anchor).square() for w, f, anchor in self._terms)
        return self.params.strength / 2 * sum(term.sum() for term in terms)

    def fisher(self, examples: Examples, task: int) -> Arrays:
        """Return the diagonal of the empirical Fisher information.

        The mean over examples of the squared gradient of the log-likelihood of the
        true label; one example at a time, since a batch's gradient hides them.
        """
        self.model.eval()
        shared = set(self.model.shared_names())
        weights = {n: w for n, w in self.model.named_parameters() if n in shared}
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        count = min(len(examples.y), self.params.fisher_examples)
        for i in range(count):
            logits = self.model(examples.x[i : i + 1], task)
            loss = torch.nn.functional.cross_entropy(logits, examples.y[i : i + 1])
            gradients = torch.autograd.grad(loss, list(weights.values()))
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient.square()
        return {name: to_numpy(t / max(count, 1)) for name, t in total.items()}
