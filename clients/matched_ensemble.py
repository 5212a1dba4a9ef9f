"""Ensembles of matched networks, client side: train alone, predict together.

One-shot federated learning (Guha et al., 2019, https://arxiv.org/abs/1902.11175); the
mean of what networks say is that of deep ensembles (Lakshminarayanan et al., NeurIPS
2017, section 2.4).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softmax
from typing_extensions import override

from clients.analytic import unit_features
from clients.stl import mean_answer
from fcl_flower.algorithms.base import ClientQueries
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.types import (
    Array,
    Arrays,
    ClientTask,
    Payload,
    TaskStage,
    Update,
    client_tasks,
)
from fcl_flower.data.examples import TaskData, concat
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_numpy, to_torch
from strategies.analytic import sums as forms
from strategies.matched_ensemble import HEADS, MatchedEnsembleParams

_LEVEL = 0.2
"""How likely a network that knows nothing is to be asked, at most."""
_HEAD = "head."
"""Before the names of a head's tensors, whatever task it is of."""


class MatchedEnsemble(LocalTraining[MatchedEnsembleParams], ClientQueries):
    """Learn each task with a network of its own; ask those of the same classes, too.

    A network is sent as its task ends, or later, if the server says that it is missing.

    A network that has learned some of a task's classes says how likely each of these
    is, if it is one of them; how likely that is, and all others, the task's own says.
    So each is a distribution over all classes, and the mean of them is the answer. Who
    is no better than chance on the task's validation samples is not asked, whoever has
    made it: a binomial test at a level of 0.2.

    State, with t the number of a task of any client c: ``base``, the body of the run's
    first network; ``networks/c/t``, those that the client has, its own among them, with
    the head as ``head.weight`` and ``head.bias``; ``same/T``, of its own task T, by
    ``c/t`` the pairs of a class of T and of the other's that are the same, shape
    (pairs, 2); ``valid/T``, its validation samples (``x`` and ``y``), for what comes
    when the task has ended; ``optimizer``, as that of `LocalTraining`.
    """

    update_is_model = False
    needs_task = True

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def answer_query(
        self, state: Payload, question: Payload, stage: TaskStage, data: TaskData
    ) -> Payload:
        """Sum over a task's samples; nothing where they are too few."""
        if len(data.train.y) < self.params.min_samples:
            return {}
        known = concat([data.train, data.valid])
        if self.model.single_head:
            # Which classes there are is all that is needed, and their numbers tell.
            h = np.zeros((len(known.y), self.model.features))
        else:
            load(self.model, state["base"])
            h = unit_features(self.model, known.x)
        return {"sums": forms.exact(h, to_numpy(known.y), data.classes)}

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        task, own = stage.task, self._own(stage.task)
        told = dict(received)
        missing = told.pop("meta", {}).get("missing", ())
        state = {**state, **told}
        if self.params.matching == "tested":
            valid = {"x": to_numpy(data.valid.x), "y": to_numpy(data.valid.y)}
            state[f"valid/{task}"] = valid
        network = state[own] if own in state else self._start(state, task)
        load(self.model, self._tensors(network, task))
        fitted = self.fit(Turn(state, received, stage, data), data.train)
        network = self._network(task)
        state = {
            **state,
            own: network,
            "optimizer": {} if stage.ends_task else fitted.optimizer,
        }
        payload: dict[str, Arrays] = {"meta": {"held": _held(state)}}
        count = len(data.train.y)
        hands_on = self.params.matching == "tested" and stage.ends_task
        if hands_on and count >= self.params.min_samples:
            payload[f"networks/{task}"] = network
        for old in map(int, np.asarray(missing)):
            if self._own(old) in state:
                payload[f"networks/{old}"] = state[self._own(old)]
        return state, Update(payload, count, fitted.metrics)

    @override
    @torch.no_grad()
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute the logarithm of the mean of all probabilities."""
        known = {**state, **received}
        x = frozen_features(self.model, x)
        own = known.get(self._own(task)) or self._fresh(known, task)
        alone = softmax(self._logits(own, task, x), 1)
        answers = [alone]
        asked = self._trusted(known, task) if self.params.ask == "matched" else ()
        for group, pairs in asked:
            mine, its = pairs.T
            theirs = softmax(self._logits(known[group], task, x)[:, its], 1)
            if torch.isfinite(theirs).all():  # anybody may have made it
                answer = alone.clone()
                answer[:, mine] = alone[:, mine].sum(1, keepdim=True) * theirs
                answers.append(answer)
        return mean_answer(answers)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        known = {**state, **received}
        own = known.get(self._own(task)) or self._fresh(known, task)
        asked = self._trusted(known, task) if self.params.ask == "matched" else ()
        found = [(known[group], pairs) for group, pairs in asked]
        others = [(self._copied(network, task), pairs) for network, pairs in found]
        return MatchedNetworks(self._copied(own, task), others)

    def _copied(self, network: Arrays, task: int) -> nn.Module:
        load(self.model, self._tensors(network, task))
        return self.model.network(task)

    def _own(self, task: int) -> str:
        return ClientTask(self.context.client, task).group("networks")

    def _trusted(self, known: Payload, task: int) -> Iterator[tuple[str, Array]]:
        """Yield the groups of networks that may answer for a task, and its classes.

        Returns:
            With each group the pairs of a class of the task and of the network's.
        """
        valid = known.get(f"valid/{task}")
        if valid is None:
            return
        y = np.asarray(valid["y"])
        x = to_torch(valid["x"], self.context.device)
        for name, found in sorted(known.get(f"same/{task}", {}).items()):
            if (group := f"networks/{name}") not in known:
                continue
            pairs = np.array(found)
            mine, its = pairs.T
            rows = np.flatnonzero(np.isin(y, mine))
            if not len(rows):
                continue
            seen = frozen_features(self.model, x[torch.from_numpy(rows)])
            said = self._logits(known[group], task, seen)[:, its].argmax(1)
            right = (mine[to_numpy(said)] == y[rows]).sum()
            # How likely as many right answers are by guessing.
            if binom.sf(right - 1, len(rows), 1 / len(mine)) <= _LEVEL:
                yield group, pairs

    @torch.no_grad()
    def _start(self, state: Payload, task: int) -> Arrays:
        """Choose the network that a new task begins with.

        That which has most of its classes, and of several the last that was begun; rows
        of the head that stand for none of them are fresh.
        """
        fresh = self._fresh(state, task)
        matched = self.params.start == "matched"
        found = list(self._trusted(state, task)) if matched else []
        if not found:
            return fresh
        group, (mine, its) = max(
            ((group, pairs.T) for group, pairs in found),
            key=lambda one: (len(one[1][0]), int(one[0].rpartition("/")[2])),
        )
        network = dict(state[group])
        for name in ("head.weight", "head.bias"):
            rows = np.array(fresh[name])
            rows[mine] = np.asarray(network[name])[its]
            network[name] = rows
        return network

    def _fresh(self, state: Payload, task: int) -> Arrays:
        load(self.model, state["base"])
        return self._network(task)

    def _network(self, task: int) -> Arrays:
        head = self._head(task)
        names = {*self.model.shared_names(), *self.model.head_names(task)}
        return {
            name.replace(head, _HEAD) if name.startswith(head) else name: values
            for name, values in snapshot(self.model, sorted(names)).items()
        }

    def _tensors(self, network: Arrays, task: int) -> Arrays:
        head = self._head(task)
        return {
            name.replace(_HEAD, head) if name.startswith(_HEAD) else name: values
            for name, values in network.items()
        }

    def _head(self, task: int) -> str:
        return f"{HEADS}{self.model.head_index(task)}."

    def _logits(self, network: Arrays, task: int, x: Tensor) -> Tensor:
        self.model.eval()
        device = self.context.device
        tensors = {
            n: to_torch(a, device) for n, a in self._tensors(network, task).items()
        }
        logits: Tensor = functional_call(self.model, tensors, (x, task))
        return logits


class MatchedNetworks(nn.Module):
    """A task's own network, and others that answer for some of its classes."""

    def __init__(
        self, own: nn.Module, others: Sequence[tuple[nn.Module, Array]]
    ) -> None:
        """Take with each other network pairs of a class of the task and of its own."""
        super().__init__()
        self.own = own
        self.others = nn.ModuleList(network for network, _ in others)
        for number, (_, pairs) in enumerate(others):
            self.register_buffer(f"pairs_{number}", torch.from_numpy(pairs))

    @override
    def forward(self, x: Tensor) -> Tensor:
        alone = softmax(self.own(x), 1)
        total, count = alone, torch.ones_like(alone[:1, :1])
        for number, network in enumerate(self.others):
            mine, its = self.get_buffer(f"pairs_{number}").T
            theirs = softmax(network(x)[:, its], 1)
            answer = alone.index_copy(
                1, mine, alone[:, mine].sum(1, keepdim=True) * theirs
            )
            usable = torch.isfinite(theirs).all()
            total = total + torch.where(usable, answer, 0.0)
            count = count + usable
        return mean_answer([total / count])


def _held(state: Payload) -> Array:
    return np.asarray(client_tasks(state, "networks"), np.int64).reshape(-1, 2)
