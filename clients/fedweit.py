"""FedWeIT, client half: a gated base, one sparse adapter a task, foreign adapters.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, equations 1 and 2. Per
decomposed tensor: theta = B * g(m) + A + sum_j alpha_j A_j. B is shared with the
server; m, A, alpha and everything that is not decomposed (biases, normalisation, the
head) belong to a task. The mask receives the task's gradient and old adapters follow
the base, which is what the released code leaves out.
"""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from clients.decomposed import (
    Gate,
    by_channel,
    compose,
    gate,
    retroactive,
    top_channels,
)
from clients.foreign import ForeignBank
from fcl_flower.contracts import Learner, Params
from fcl_flower.data.tasks import TaskData
from fcl_flower.decomposition import decomposed
from fcl_flower.sparse import SparseArray
from fcl_flower.tensors import arrays_of, dense, snapshot, to_numpy, to_torch
from fcl_flower.training import fit, score
from fcl_flower.types import Array, Arrays, Payload, Stage, Update

Tensors = dict[str, Tensor]


class FedWeitParams(Params):
    """Hyper-parameters of the client half.

    Attributes:
        kappa: share of the output channels whose base is sent up, in (0, 1].
        lambda1: weight of the sparsity of masks and adapters, at least 0.
        lambda2: weight of keeping old tasks where they were, at least 0.
        threshold: an adapter's entries up to this magnitude are dropped when its
            task ends, at least 0.
        gate: g in theta = B * g(m) + ...
        initial_gate: raw value m of a new task's mask.
        initial_adapter: A of a new task starts as this multiple of the initial base.
        base_rate: factor on the learning rate for B, at least 0.
        attention_rate: factor on the learning rate for alpha, at least 0.
        solver: how old adapters follow the base: ``closed`` (once, exactly, given
            the base) or ``gradient`` (trained along in every step, as printed).
        aggregation: ``literal`` sends B * g(m) instead of B; see the server half.
    """

    kappa: float = Field(0.3, gt=0, le=1)
    lambda1: float = Field(1e-3, ge=0)
    lambda2: float = Field(100.0, ge=0)
    threshold: float = Field(1e-3, ge=0)
    gate: Gate = "sigmoid"
    initial_gate: float = 2.0
    initial_adapter: float = 0.0
    base_rate: float = Field(1.0, ge=0)
    attention_rate: float = Field(30.0, ge=0)
    solver: Literal["closed", "gradient"] = "closed"
    aggregation: Literal["masked-mean", "literal"] = "masked-mean"


class FedWeit(Learner[FedWeitParams]):
    """Learn a task with its own adapter; keep old tasks as they were.

    State, with T the number of a task:

    - ``base``: B now; ``anchor/base``: B when the last task ended.
    - ``masks/T``: raw masks m; ``heads/T``: biases, normalisation and head.
    - ``adapters/T``: A. Of an old task, as it was when the last task ended (closed
      solver) or as it is now with ``anchor/T`` as it was then (gradient solver).
    - ``foreign/T``: sum_j alpha_j A_j of a finished task.
    - ``received/C/S`` and ``attention``: A_j and alpha of the current task.
    - ``optimizer``: of the current task.
    """

    params_type = FedWeitParams

    @override
    def init(self) -> Payload:
        start = decomposed(snapshot(self.model, self.model.shared_names()))
        return {"base": start, "anchor/base": start}

    @override
    def train(
        self, state: Payload, received: Payload, stage: Stage, data: TaskData
    ) -> tuple[Payload, Update]:
        task = stage.task
        state = _receive(state, received)
        if f"masks/{task}" not in state:
            state = self._start(state, task)
        work = _Workspace(self, state, task)
        done = fit(
            work.leaves,
            work.loss,
            lambda: score(work.logits, data.valid),
            data.train,
            self.place.training,
            memory=state["optimizer"],
            seed=self.place.seed,
            client=self.place.client,
            stage=stage,
            rates=work.rates,
        )
        state = {**state, **work.payload(), "optimizer": done.memory}
        uplink: dict[str, Arrays] = {"base": self._sent_base(state, task)}
        metrics = done.metrics() | _attended(state)
        if stage.last:
            state = self._finish(state, task)
            uplink["adapters"] = state[f"adapters/{task}"]
        return state, Update(uplink, len(data.train.y), metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        if f"masks/{task}" not in state:
            state = self._start(state, task)
        return _Workspace(self, state, task).logits(x)

    def follow(self, state: Payload, task: int) -> Tensors:
        """Return A of a task as it follows today's base."""
        adapters = self.torch(state[f"adapters/{task}"])
        if self.params.solver == "gradient" or _current(state) == task:
            return adapters
        base, anchor = self.torch(state["base"]), self.torch(state["anchor/base"])
        masks = self.torch(state[f"masks/{task}"])
        return {
            name: retroactive(
                adapter,
                base[name] - anchor[name],
                gate(masks[name], self.params.gate),
                self.params.lambda1,
                self.params.lambda2,
            )
            for name, adapter in adapters.items()
        }

    def torch(self, arrays: Arrays) -> Tensors:
        """Return dense torch copies on this learner's device."""
        return {n: to_torch(values, self.place.device) for n, values in arrays.items()}

    def _start(self, state: Payload, task: int) -> Payload:
        """Return the state with a new task's mask, adapter, head and attention."""
        initial = snapshot(self.model, self.model.state_dict())
        weights = decomposed(initial)
        heads = set(self.model.head_names(task))
        private = {
            name: values
            for name, values in initial.items()
            if name not in weights
            and (self.model.single_head or name in heads or name.startswith("body."))
        }
        foreign = len(_received(state))
        return {
            **state,
            f"masks/{task}": {
                name: np.full(len(v), self.params.initial_gate, v.dtype)
                for name, v in weights.items()
            },
            f"adapters/{task}": {
                name: np.multiply(self.params.initial_adapter, v, dtype=v.dtype)
                for name, v in weights.items()
            },
            f"heads/{task}": private,
            "attention": {
                name: np.full(foreign, 1 / max(foreign, 1), v.dtype)
                for name, v in weights.items()
            },
            "optimizer": {},
        }

    def _finish(self, state: Payload, task: int) -> Payload:
        """Prune the task's adapter, fold the foreign ones, let old ones follow."""
        old = {
            f"adapters/{t}": {
                name: SparseArray.of_nonzero(to_numpy(adapter))
                for name, adapter in self.follow(state, t).items()
            }
            for t in range(task)
            if f"adapters/{t}" in state
        }
        pruned = {
            name: SparseArray.of_nonzero(dense(values), self.params.threshold)
            for name, values in state[f"adapters/{task}"].items()
        }
        folded = {
            name: SparseArray.of_nonzero(bank.combine(dense(state["attention"][name])))
            for name, bank in _banks(state).items()
        }
        transient = {"attention", *_received(state)}
        kept = {g: arrays for g, arrays in state.items() if g not in transient}
        finished: dict[str, Arrays] = {
            **kept,
            **old,
            f"adapters/{task}": pruned,
            "anchor/base": state["base"],
            "optimizer": {},
        }
        if folded:
            finished[f"foreign/{task}"] = folded
        if self.params.solver == "gradient":
            for t in range(task + 1):
                if f"adapters/{t}" in finished:
                    finished[f"anchor/{t}"] = finished[f"adapters/{t}"]
        return finished

    def _sent_base(self, state: Payload, task: int) -> Arrays:
        """Return B, or B * g(m), on the top-kappa channels by gate."""
        masks = self.torch(state[f"masks/{task}"])
        sent = {}
        for name, base in self.torch(state["base"]).items():
            gates = gate(masks[name], self.params.gate)
            channels = top_channels(gates, self.params.kappa)
            if self.params.aggregation == "literal":
                base = base * by_channel(gates, base)
            sent[name] = SparseArray.of_channels(to_numpy(base), to_numpy(channels))
        return sent


class _Workspace:
    """The torch side of one task for the length of a call: leaves, theta, loss."""

    def __init__(self, learner: FedWeit, state: Payload, task: int) -> None:
        params, torch_of = learner.params, learner.torch
        self._model, self._params, self._task = learner.model, params, task
        self._base = torch_of(state["base"])
        self._masks = torch_of(state[f"masks/{task}"])
        self._adapters = learner.follow(state, task)
        self._private = torch_of(state[f"heads/{task}"])
        self._folded = torch_of(state.get(f"foreign/{task}", {}))
        self._banks, self._attention = {}, {}
        if _current(state) == task:
            self._banks = _banks(state)
            self._attention = torch_of(state["attention"]) if self._banks else {}
        self._old: dict[int, Tensors] = {}
        if params.solver == "gradient":
            self._anchor = torch_of(state["anchor/base"])
            for t in range(task):
                if f"anchor/{t}" in state:
                    self._old[t] = torch_of(state[f"adapters/{t}"])
            self._anchors = {t: torch_of(state[f"anchor/{t}"]) for t in self._old}
            self._gates = {
                t: {
                    name: gate(mask, params.gate)
                    for name, mask in torch_of(state[f"masks/{t}"]).items()
                }
                for t in self._old
            }
        groups = {
            "base": self._base,
            "masks": self._masks,
            "adapters": self._adapters,
            "attention": self._attention,
            "heads": self._private,
            **{f"old/{t}": adapters for t, adapters in self._old.items()},
        }
        self.leaves: dict[str, nn.Parameter] = {}
        buffers = {name for name, _ in learner.model.named_buffers()}
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                if name not in buffers:
                    leaf = nn.Parameter(tensor)
                    tensors[name] = self.leaves[f"{group}/{name}"] = leaf
        self.rates = {
            name: factor
            for group, factor in (
                ("base", params.base_rate),
                ("attention", params.attention_rate),
            )
            for name in self.leaves
            if name.startswith(group + "/")
        }

    def theta(self, name: str) -> Tensor:
        """Return the composed weight (equation 1)."""
        foreign = self._folded.get(name)
        if name in self._banks:
            foreign = self._banks[name].weighted(self._attention[name])
        gates = gate(self._masks[name], self._params.gate)
        return compose(self._base[name], gates, self._adapters[name], foreign)

    def logits(self, x: Tensor) -> Tensor:
        """Return the task's logits in evaluation mode, without gradients."""
        self._model.eval()
        with torch.no_grad():
            return self._forward(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return equation 2 on one batch."""
        self._model.train()
        loss = nn.functional.cross_entropy(self._forward(x), y)
        return loss + self.sparsity() + self.drift()

    def sparsity(self) -> Tensor:
        """Return lambda1 (|m|_1 + sum_i |A_i|_1), over what is being trained."""
        trained = [self._masks, self._adapters, *self._old.values()]
        terms = [tensor.abs().sum() for group in trained for tensor in group.values()]
        return self._params.lambda1 * torch.stack(terms).sum()

    def drift(self) -> Tensor | float:
        """Return lambda2 sum_i ||dB * g(m_i) + dA_i||^2 (zero for the closed solver).

        The closed solver lets each A_i take up the base's movement afterwards, which
        is the exact minimum over A_i; what this term would still pull at B is at most
        lambda1 g(m_i) an entry, and is left out there.
        """
        total: Tensor | float = 0.0
        for t, adapters in self._old.items():
            for name, adapter in adapters.items():
                moved = self._base[name] - self._anchor[name]
                followed = adapter - self._anchors[t][name]
                gates = by_channel(self._gates[t][name], moved)
                total = total + (moved * gates + followed).square().sum()
        return self._params.lambda2 * total

    def payload(self) -> Payload:
        """Return what training changed, as groups of the client's state."""
        task = self._task
        changed: dict[str, Arrays] = {
            "base": arrays_of(self._base),
            f"masks/{task}": arrays_of(self._masks),
            f"adapters/{task}": arrays_of(self._adapters),
            f"heads/{task}": arrays_of(self._private),
            **{f"adapters/{t}": arrays_of(a) for t, a in self._old.items()},
        }
        if self._attention:
            changed["attention"] = arrays_of(self._attention)
        return changed

    def _forward(self, x: Tensor) -> Tensor:
        weights = {name: self.theta(name) for name in self._base}
        logits: Tensor = torch.func.functional_call(
            self._model, {**weights, **self._private}, (x, self._task)
        )
        return logits


def _receive(state: Payload, received: Payload) -> Payload:
    """Overwrite B only where theta_G was sent; keep the foreign adapters."""
    base = dict(state["base"])
    for name, sent in received["base"].items():
        if isinstance(sent, SparseArray):
            base[name] = sent.overwrite(dense(base[name]))
    foreign = {
        f"received/{group.removeprefix('adapters/')}": arrays
        for group, arrays in received.items()
        if group.startswith("adapters/")
    }
    return {**state, **foreign, "base": base}


def _received(state: Payload) -> list[str]:
    """Return the groups with the current task's foreign adapters, in one order."""
    return sorted(group for group in state if group.startswith("received/"))


def _current(state: Payload) -> int | None:
    """Return the task in progress; None between tasks."""
    if "attention" not in state:
        return None
    return max(int(g.split("/")[1]) for g in state if g.startswith("masks/"))


def _banks(state: Payload) -> dict[str, ForeignBank]:
    """Return the foreign adapters by tensor; empty when there are none."""
    groups = _received(state)
    if not groups:
        return {}
    return {
        name: ForeignBank([_sparse(state[group][name]) for group in groups])
        for name in state["base"]
    }


def _sparse(tensor: SparseArray | Array) -> SparseArray:
    if isinstance(tensor, SparseArray):
        return tensor
    return SparseArray.of_nonzero(tensor)


def _attended(state: Payload) -> dict[str, float]:
    """Return mean |alpha| over the tensors by foreign adapter, for the report."""
    groups = _received(state)
    if not groups:
        return {}
    weights = np.mean([np.abs(dense(a)) for a in state["attention"].values()], axis=0)
    return {
        group.replace("received/", "attention/"): float(weight)
        for group, weight in zip(groups, weights, strict=True)
    }
