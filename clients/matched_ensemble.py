"""Ensembles of matched networks, client side: clients train alone, predict together.

One-shot federated learning (Guha et al., 2019, https://arxiv.org/abs/1902.11175). Deep
ensembles also take the mean of networks' probabilities (Lakshminarayanan et al.,
NeurIPS 2017, section 2.4).
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
    Update,
    client_tasks,
)
from fcl_flower.data.examples import concat
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_numpy, to_torch
from strategies.analytic import sums as forms
from strategies.matched_ensemble import HEADS, MatchedEnsembleParams

_LEVEL = 0.2
"""The largest probability with which a network that only guesses is used."""
_HEAD = "head."
"""The prefix of the names of a head's tensors, for a head of any task."""


class MatchedEnsemble(LocalTraining[MatchedEnsembleParams], ClientQueries):
    """A learner with a network for each task, which predicts with matching ones too.

    A network is sent when its task ends, or later, if the server says that it is
    missing. The answer is the mean of several distributions over all classes. The
    task's own network gives the first. Each other network that has learned some of the
    task's classes gives one more. It divides the probability that the own network gives
    to these classes among them; the others keep theirs. A network is used only if it is
    better than chance on the task's validation samples. A binomial test at a level of
    0.2 decides it.

    State, with t the number of a task of any client c:

    - ``base``: the body of the run's first network.
    - ``networks/c/t``: the networks that the client has, also its own. The head is
      ``head.weight`` and ``head.bias``.
    - ``same/T``, for its own task T: by ``c/t`` the pairs of a class of T and the same
      class of that task, shape (pairs, 2).
    - ``valid/T``: validation samples of T (``x`` and ``y``), for networks that come
      after the task.
    - ``optimizer``: as in `LocalTraining`.
    """

    update_is_model = False
    needs_task = True

    @override
    def init(self) -> Payload:
        return {"base": snapshot(self.model, self.model.shared_names())}

    @override
    def answer_query(self, turn: Turn) -> Payload:
        """Sum over a task's samples; send nothing if the samples are too few."""
        state, _, _, data = turn
        if len(data.train.y) < self.params.min_samples:
            return {}
        samples = concat([data.train, data.valid])
        if self.model.single_head:
            # In a single head class numbers match classes, so features are not needed.
            h = np.zeros((len(samples.y), self.model.features))
        else:
            load(self.model, state["base"])
            h = unit_features(self.model, samples.x)
        return {"sums": forms.exact(h, to_numpy(samples.y), data.classes)}

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        task, own = stage.task, self._own(stage.task)
        groups = dict(received)
        missing = groups.pop("meta", {}).get("missing", ())
        state = {**state, **groups}
        if self.params.matching == "tested":
            valid = {"x": to_numpy(data.valid.x), "y": to_numpy(data.valid.y)}
            state[f"valid/{task}"] = valid
        network = state[own] if own in state else self._start(state, task)
        start = {"base": self._tensors(network, task)}
        after, update = self.fit_locally(Turn(state, start, stage, data))
        network = self._network(task)
        state = {**state, own: network, "optimizer": after["optimizer"]}
        payload: dict[str, Arrays] = {"meta": {"held": _held(state)}}
        count = len(data.train.y)
        hands_on = self.params.matching == "tested" and stage.ends_task
        if hands_on and count >= self.params.min_samples:
            payload[f"networks/{task}"] = network
        for old in map(int, np.asarray(missing)):
            if self._own(old) in state:
                payload[f"networks/{old}"] = state[self._own(old)]
        return state, Update(payload, count, update.metrics)

    @override
    @torch.no_grad()
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute the logarithm of the mean of all probabilities."""
        groups = {**state, **received}
        x = frozen_features(self.model, x)
        own = groups.get(self._own(task)) or self._fresh(groups, task)
        alone = softmax(self._logits(own, task, x), 1)
        answers = [alone]
        asked = self._trusted(groups, task) if self.params.ask == "matched" else ()
        for group, pairs in asked:
            mine, its = pairs.T
            theirs = softmax(self._logits(groups[group], task, x)[:, its], 1)
            if torch.isfinite(theirs).all():  # any client may have sent it
                answer = alone.clone()
                answer[:, mine] = alone[:, mine].sum(1, keepdim=True) * theirs
                answers.append(answer)
        return mean_answer(answers)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        groups = {**state, **received}
        own = groups.get(self._own(task)) or self._fresh(groups, task)
        asked = self._trusted(groups, task) if self.params.ask == "matched" else ()
        trusted = [(groups[group], pairs) for group, pairs in asked]
        others = [(self._copied(network, task), pairs) for network, pairs in trusted]
        return MatchedNetworks(self._copied(own, task), others)

    def _copied(self, network: Arrays, task: int) -> nn.Module:
        load(self.model, self._tensors(network, task))
        return self.model.network(task)

    def _own(self, task: int) -> str:
        return ClientTask(self.context.client, task).group("networks")

    def _trusted(self, groups: Payload, task: int) -> Iterator[tuple[str, Array]]:
        """Yield the networks that may answer for some of a task's classes.

        Returns:
            each network's group, with pairs of a class of the task and of the
            network's.
        """
        valid = groups.get(f"valid/{task}")
        if valid is None:
            return
        y = np.asarray(valid["y"])
        x = to_torch(valid["x"], self.context.device)
        for name, matches in sorted(groups.get(f"same/{task}", {}).items()):
            if (group := f"networks/{name}") not in groups:
                continue
            pairs = np.array(matches)
            mine, its = pairs.T
            rows = np.flatnonzero(np.isin(y, mine))
            if not len(rows):
                continue
            seen = frozen_features(self.model, x[torch.from_numpy(rows)])
            answers = self._logits(groups[group], task, seen)[:, its].argmax(1)
            right = (mine[to_numpy(answers)] == y[rows]).sum()
            # The value is the probability of as many right answers by guessing.
            if binom.sf(right - 1, len(rows), 1 / len(mine)) <= _LEVEL:
                yield group, pairs

    @torch.no_grad()
    def _start(self, state: Payload, task: int) -> Arrays:
        """Choose the network that a new task begins with.

        It is the network with most of the task's classes; of several the one begun
        last. Rows of the head for other classes are fresh.
        """
        fresh = self._fresh(state, task)
        matched = self.params.start == "matched"
        trusted = list(self._trusted(state, task)) if matched else []
        if not trusted:
            return fresh
        group, (mine, its) = max(
            ((group, pairs.T) for group, pairs in trusted),
            key=lambda match: (len(match[1][0]), int(match[0].rpartition("/")[2])),
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
        """Take the other networks, each with pairs of the task's class and its own."""
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
