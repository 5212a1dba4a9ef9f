"""The torch side of one task of FedWeIT for the length of a call.

Leaves to train, the composed weights theta, and the loss: equations 1 and 2 of Yoon et
al., ICML 2021. It knows nothing of messages, nor of how a client keeps its state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from clients.fedweit.maths import (
    ForeignBank,
    by_channel,
    compose,
    following_cost,
    gate,
    soft,
)
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import StepSize
from strategies.fedweit import FedWeitParams

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class OldTask:
    """What training needs of a task of the past.

    Attributes:
        anchors: A_i when the previous task ended.
        gates: g(m_i).
        adapters: A_i, which the gradient solver trains along.
    """

    anchors: Tensors
    gates: Tensors
    adapters: Tensors = field(default_factory=dict)


@dataclass(slots=True)
class TaskTensors:
    """The tensors of one task by name; all but ``foreign`` and ``old`` are theta's.

    Attributes:
        base: B. masks: m, raw. adapters: A.
        private: biases, normalisation and head of the task.
        foreign: sum_j alpha_j A_j where it is settled, by name.
        banks: A_j where alpha is still trained, by name.
        attention: alpha for each bank.
        anchor: B when the previous task ended.
        old: tasks of the past, when another is trained.
    """

    base: Tensors
    masks: Tensors
    adapters: Tensors
    private: Tensors
    foreign: Tensors = field(default_factory=dict)
    banks: Mapping[str, ForeignBank] = field(default_factory=dict)
    attention: Tensors = field(default_factory=dict)
    anchor: Tensors = field(default_factory=dict)
    old: dict[int, OldTask] = field(default_factory=dict)


class TaskModel:
    """A task's model made of `TaskTensors`, with the leaves that training changes.

    Attributes:
        model: whose own tensors are not used.
        params: hyper-parameters.
        task: whose head answers.
        tensors: the tensors; those that are trained have become parameters.
        leaves: the parameters by group and name, such as ``masks/body.fc1.weight``.
        rates: factors on the learning rate for some of the leaves.
        sparse: the leaves that `proximal_step` makes sparse, with the weight of |.|_1.
    """

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedWeitParams,
        task: int,
        tensors: TaskTensors,
    ) -> None:
        """Turn ``tensors`` into leaves; the tensors given are taken over."""
        self.model, self.params, self.task = model, params, task
        self.tensors = tensors
        self.leaves: dict[str, nn.Parameter] = {}
        self.rates: dict[str, float] = {}
        self.sparse: dict[str, float] = {}
        closing = params.lambda_mask if params.gate == "identity" else 0.0
        self.add_leaves("base", tensors.base, params.base_rate)
        self.add_leaves("masks", tensors.masks, params.mask_rate, sparsity=closing)
        self.add_leaves("adapters", tensors.adapters, sparsity=params.lambda1)
        self.add_leaves("attention", tensors.attention, params.attention_rate)
        self.add_leaves("heads", tensors.private)
        for t, old in tensors.old.items():
            self.add_leaves(f"old/{t}", old.adapters, sparsity=params.lambda1)

    def weights(self) -> Tensors:
        """Compose theta by name (equation 1)."""
        return {name: self.theta(name) for name in self.tensors.base}

    def theta(self, name: str) -> Tensor:
        """Compose one weight (equation 1)."""
        tensors = self.tensors
        foreign = tensors.foreign.get(name)
        if name in tensors.banks:
            foreign = tensors.banks[name].weighted(tensors.attention[name])
        gates = gate(tensors.masks[name], self.params.gate)
        return compose(tensors.base[name], gates, tensors.adapters[name], foreign)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the task's logits with the composed weights."""
        tensors = {**self.weights(), **self.tensors.private}
        return cast(
            Tensor,
            torch.func.functional_call(self.model, tensors, (x, self.task)),
        )

    def prepared(self, data: TaskData) -> TaskData:
        """Bring the examples to the form in which `loss` and `logits` take them."""
        return data

    def logits(self, x: Tensor) -> Tensor:
        """Compute the task's logits in evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad():
            return self.forward(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute equation 2 on a batch, without the terms of `proximal_step`."""
        self.model.train()
        loss = nn.functional.cross_entropy(self.forward(x), y)
        return loss + self.gate_penalty() + self.drift()

    def gate_penalty(self) -> Tensor | float:
        """Compute lambda_mask |g(m)|_1 of sigmoids, which have a gradient everywhere.

        What is to be sparse is the gate: |m|_1 would pull a sigmoid to 0.5.
        """
        if self.params.gate != "sigmoid":
            return 0.0
        gates = [gate(m, "sigmoid").sum() for m in self.tensors.masks.values()]
        return self.params.lambda_mask * torch.stack(gates).sum()

    def proximal_step(self, step_size: StepSize) -> None:
        """Take the proximal step of lambda_mask |m|_1 + lambda1 sum_i |A_i|_1.

        After the optimizer's, and in its own metric (Yun et al., Adaptive proximal
        gradient methods, NeurIPS 2021): where it went s times the mean gradient, the
        soft threshold is s lambda1. So training rests where equation 2 has its minimum,
        at exact zeros too. With rate times lambda1, the threshold of plain gradient
        descent, Adam would weigh lambda1 by the noise of each entry.
        """
        with torch.no_grad():
            for name, weight in self.sparse.items():
                leaf = self.leaves[name]
                if leaf.grad is not None:  # else the network does not use it
                    leaf.copy_(soft(leaf, weight * step_size(name)))

    def drift(self) -> Tensor | float:
        """Compute lambda2 sum_i ||dB * g(m_i) + dA_i||^2.

        With the closed solver: its minimum over the A_i, their sparsity included, which
        is a function of B alone; they take it up afterwards.
        """
        if not (self.tensors.old and self.params.lambda2):
            return 0.0
        closed = self.params.solver == "closed"
        cost = self._drift_at_best if closed else self._drift_as_trained
        return torch.stack([cost(name) for name in self.tensors.base]).sum()

    def _drift_at_best(self, name: str) -> Tensor:
        tensors, params = self.tensors, self.params
        old = [(task.anchors[name], task.gates[name]) for task in tensors.old.values()]
        base, anchor = tensors.base[name], tensors.anchor[name]
        return following_cost(base, anchor, old, params.lambda1, params.lambda2)

    def _drift_as_trained(self, name: str) -> Tensor:
        moved = self.tensors.base[name] - self.tensors.anchor[name]
        parts = [
            moved * by_channel(task.gates[name], moved)
            + task.adapters[name]
            - task.anchors[name]
            for task in self.tensors.old.values()
        ]
        return self.params.lambda2 * torch.stack(parts).square().sum()

    def add_leaves(
        self, group: str, tensors: Tensors, rate: float = 1.0, sparsity: float = 0.0
    ) -> None:
        """Make leaves of all tensors but the statistics of normalisation."""
        buffers = {name for name, _ in self.model.named_buffers()}
        for name in sorted(tensors.keys() - buffers):
            leaf = nn.Parameter(tensors[name])
            tensors[name] = self.leaves[f"{group}/{name}"] = leaf
            if rate != 1.0:
                self.rates[f"{group}/{name}"] = rate
            if sparsity:
                self.sparse[f"{group}/{name}"] = sparsity
