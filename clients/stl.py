"""Single-task learning: a fresh model for each task, the bound without transfer.

The FedWeIT paper calls it STL, tables 1 and 2. With several networks for each task it
is a deep ensemble (Lakshminarayanan et al., NeurIPS 2017, section 2.4). The networks
begin alike, and differ by the order in which they see the samples.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.tensors import load, snapshot
from strategies.stl import StlParams

_TRAINED = ("heads", "optimizer")


class SingleTask(ClientLearner[StlParams]):
    """A learner of a fresh model for each task: it forgets nothing and reuses nothing.

    State: ``base`` (the untrained model), ``base/T``, the model of task T, and the
    groups of `LocalTraining`. All groups of the m-th network after the first end in
    ``/m``.
    """

    needs_task = True
    balances = LocalTraining.balances
    augments = True

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
        kept, task = dict(state), stage.task
        fresh = snapshot(self.model, self.model.head_names(task))
        for member in range(self.params.members):
            own = _trained(state, member)
            own["heads"] = {**fresh, **own.get("heads", {})}
            body = _body(state, task, member)
            after, update = self._member(member).train(Turn(own, body, stage, data))
            groups = {name: after[name] for name in _TRAINED}
            groups[f"base/{task}"] = update.payload["base"]
            kept |= {name + _ending(member): arrays for name, arrays in groups.items()}
        return kept, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute a network's logits, or the log of the mean of probabilities."""
        logits = []
        for member in range(self.params.members):
            own, body = _trained(state, member), _body(state, task, member)
            logits.append(self._member(member).predict(own, body, task, x))
        if len(logits) == 1:
            return logits[0]
        return mean_answer([softmax(answers, 1) for answers in logits])

    @override
    def predictor(
        self, state: Payload, received: Payload, task: int
    ) -> nn.Module | None:
        if self.params.members == 1:
            return None
        networks = []
        for member in range(self.params.members):
            load(self.model, _body(state, task, member)["base"])
            load(self.model, _trained(state, member).get("heads", {}))
            networks.append(self.model.network(task))
        return Ensemble(networks)

    def _member(self, member: int) -> LocalTraining[StlParams]:
        seed = self.context.seed
        if member:
            seed = derive(seed, "member", member)
        context = replace(self.context, seed=seed)
        return LocalTraining(self.params, self.model, context)


class Ensemble(nn.Module):
    """An ensemble: the logarithm of the mean of its networks' probabilities."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        """Take one network or more, from inputs to logits."""
        super().__init__()
        self.networks = nn.ModuleList(networks)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return mean_answer([softmax(network(x), 1) for network in self.networks])


def mean_answer(answers: Sequence[Tensor]) -> Tensor:
    """Compute the logarithm of the mean of probabilities, `CLOSED` where it is 0.

    Args:
        answers: one or more of shape (batch, classes).
    """
    mean = torch.stack(list(answers)).mean(0)
    return torch.where(mean > 0, mean.log(), CLOSED)


def _trained(state: Payload, member: int) -> dict[str, Arrays]:
    """Select the groups of `LocalTraining` for one network."""
    groups = {name: name + _ending(member) for name in _TRAINED}
    return {name: state[group] for name, group in groups.items() if group in state}


def _body(state: Payload, task: int, member: int) -> Payload:
    return {"base": state.get(f"base/{task}{_ending(member)}", state["base"])}


def _ending(member: int) -> str:
    return f"/{member}" if member else ""
