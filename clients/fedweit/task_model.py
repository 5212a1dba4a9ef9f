"""The torch side of one task of FedWeIT for the length of a call.

Leaves to train, the composed weights theta, and the loss: equations 1 and 2 of Yoon et
al., ICML 2021. It knows nothing of messages, nor of how a client keeps its state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from clients.fedweit.equations import by_channel, compose, gate
from clients.fedweit.foreign_adapters import ForeignBank
from fcl_flower.data.examples import TaskData
from fcl_flower.models.registry import MultiHeadModel
from strategies.fedweit import FedWeitParams

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class OldTask:
    """What the gradient solver needs of a task of the past.

    Attributes:
        adapters: A_i, which is trained along.
        anchors: A_i when the previous task ended.
        gates: g(m_i).
    """

    adapters: Tensors
    anchors: Tensors
    gates: Tensors


@dataclass(slots=True)
class TaskTensors:
    """The tensors of one task by name; all but ``foreign`` and ``old`` are theta's.

    Attributes:
        base: B. masks: m, raw. adapters: A.
        private: biases, normalisation and head of the task.
        foreign: sum_j alpha_j A_j where it is settled, by name.
        banks: A_j where alpha is still trained, by name.
        attention: alpha for each bank.
        anchor: B when the previous task ended; for the gradient solver.
        old: tasks of the past; for the gradient solver.
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
        self.take("base", tensors.base, params.base_rate)
        self.take("masks", tensors.masks)
        self.take("adapters", tensors.adapters)
        self.take("attention", tensors.attention, params.attention_rate)
        self.take("heads", tensors.private)
        for t, old in tensors.old.items():
            self.take(f"old/{t}", old.adapters)

    def weights(self) -> Tensors:
        """Return theta by name (equation 1)."""
        return {name: self.theta(name) for name in self.tensors.base}

    def theta(self, name: str) -> Tensor:
        """Return one composed weight (equation 1)."""
        tensors = self.tensors
        foreign = tensors.foreign.get(name)
        if name in tensors.banks:
            foreign = tensors.banks[name].weighted(tensors.attention[name])
        gates = gate(tensors.masks[name], self.params.gate)
        return compose(tensors.base[name], gates, tensors.adapters[name], foreign)

    def forward(self, x: Tensor) -> Tensor:
        """Return the task's logits with the composed weights."""
        tensors = {**self.weights(), **self.tensors.private}
        return cast(
            Tensor,
            torch.func.functional_call(self.model, tensors, (x, self.task)),
        )

    def prepared(self, data: TaskData) -> TaskData:
        """Return the examples in the form in which `loss` and `logits` take them."""
        return data

    def logits(self, x: Tensor) -> Tensor:
        """Return the task's logits in evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad():
            return self.forward(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return equation 2 on one batch."""
        self.model.train()
        loss = nn.functional.cross_entropy(self.forward(x), y)
        return loss + self.sparsity() + self.drift()

    def sparsity(self) -> Tensor:
        """Return lambda1 (|m|_1 + sum_i |A_i|_1), over what is being trained."""
        tensors = self.tensors
        trained = [tensors.masks, tensors.adapters]
        trained += [old.adapters for old in tensors.old.values()]
        terms = [tensor.abs().sum() for group in trained for tensor in group.values()]
        return self.params.lambda1 * torch.stack(terms).sum()

    def drift(self) -> Tensor | float:
        """Return lambda2 sum_i ||dB * g(m_i) + dA_i||^2 (zero for the closed solver).

        The closed solver lets each A_i take up the base's movement afterwards, which
        is the exact minimum over A_i; what this term would still pull at B is at most
        lambda1 g(m_i) an entry, and is left out there.
        """
        total: Tensor | float = 0.0
        for old in self.tensors.old.values():
            for name, adapter in old.adapters.items():
                moved = self.tensors.base[name] - self.tensors.anchor[name]
                followed = adapter - old.anchors[name]
                gates = by_channel(old.gates[name], moved)
                total = total + (moved * gates + followed).square().sum()
        return self.params.lambda2 * total

    def take(self, group: str, tensors: Tensors, rate: float = 1.0) -> None:
        """Make leaves of all tensors but the statistics of normalisation."""
        buffers = {name for name, _ in self.model.named_buffers()}
        for name in sorted(tensors.keys() - buffers):
            leaf = nn.Parameter(tensors[name])
            tensors[name] = self.leaves[f"{group}/{name}"] = leaf
            if rate != 1.0:
                self.rates[f"{group}/{name}"] = rate


def predict(
    model: MultiHeadModel, tensors: Mapping[str, Tensor], x: Tensor, task: int
) -> Tensor:
    """Return logits of ``model`` with ``tensors`` in place of its own, evaluating."""
    model.eval()
    logits: Tensor = torch.func.functional_call(model, dict(tensors), (x, task))
    return logits
