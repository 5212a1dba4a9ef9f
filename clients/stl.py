"""Single-task learning: a fresh model for each task, the bound without transfer.

Named STL in the FedWeIT paper, tables 1 and 2. With several networks for each task, a
deep ensemble (Lakshminarayanan et al., NeurIPS 2017, section 2.4): they begin alike,
and differ by the order in which they see the samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softmax
from typing_extensions import override

from clients.fedavg import Sgd
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.multi_head import CLOSED
from fcl_flower.training.tensors import snapshot
from strategies.stl import StlParams

_OF_SGD = ("heads", "optimizer")


class SingleTask(Sgd[StlParams]):
    """Nothing is forgotten and nothing is reused.

    State beside that of `Sgd`: ``base`` (the untrained model) and ``base/T``, the
    model of task T. Of the m-th network beside the first all groups end in ``/m``.
    """

    _member = 0

    @property
    @override
    def seed(self) -> int:
        seed = self.context.seed
        return derive(seed, "member", self._member) if self._member else seed

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        kept, task = dict(state), stage.task
        fresh = snapshot(self.model, self.model.head_names(task))
        for member in range(self.params.members):
            self._member = member
            own = self._own(state)
            own["heads"] = {**fresh, **own.get("heads", {})}
            after, update = super().train(own, self._body(state, task), stage, data)
            found = {name: after[name] for name in _OF_SGD}
            found[f"base/{task}"] = update.payload["base"]
            kept |= {name + _ending(member): arrays for name, arrays in found.items()}
        return kept, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Return a network's logits, or the logarithm of the mean of probabilities."""
        logits = []
        for member in range(self.params.members):
            self._member = member
            own = self._own(state)
            logits.append(super().predict(own, self._body(state, task), task, x))
        if len(logits) == 1:
            return logits[0]
        return mean_answer([softmax(one, 1) for one in logits])

    def _own(self, state: Payload) -> dict[str, Arrays]:
        """Return what `Sgd` keeps of the network at hand."""
        groups = {name: name + _ending(self._member) for name in _OF_SGD}
        return {name: state[g] for name, g in groups.items() if g in state}

    def _body(self, state: Payload, task: int) -> Payload:
        """Return the body with which the network at hand answers for a task."""
        group = f"base/{task}{_ending(self._member)}"
        return {"base": state.get(group, state["base"])}


def mean_answer(answers: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of probabilities, `CLOSED` for none.

    Args:
        answers: one or more of shape (batch, classes).
    """
    mean = torch.stack(list(answers)).mean(0)
    return torch.where(mean > 0, mean.log(), CLOSED)


def _ending(member: int) -> str:
    return f"/{member}" if member else ""
