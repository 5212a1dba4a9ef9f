"""EWC: each weight is held back in proportion to what old tasks need of it.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796, equation 3, with one
running Fisher information and one anchor as in online EWC (Schwarz et al., ICML 2018,
https://arxiv.org/abs/1805.06370, section 3.2), so that the state does not grow with the
number of tasks.
"""

from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from clients.fisher import diagonal_fisher
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import dense, to_torch
from strategies.ewc import EwcParams

E = TypeVar("E", bound=EwcParams)


class Ewc(LocalTraining[E]):
    """Add ``strength / 2 * sum F (w - anchor)^2`` over the shared parameters.

    Before another learner in a class's bases it adds to what that adds.

    State besides: ``fisher`` and ``anchor``, refreshed when a task ends.
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
        own = self.params.strength / 2 * sum(term.sum() for term in terms)
        return super().penalty(rows, hidden) + own

    def fisher(self, examples: Examples, task: int) -> Arrays:
        """Return the diagonal of the empirical Fisher information of a task."""
        return diagonal_fisher(self.model, examples, task, self.params.fisher_examples)
