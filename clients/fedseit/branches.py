"""Foreign adapters as branches of a network for text (FedSeIT, equations 2 and 3).

Adapter i gives z_i = relu(max_p(alpha_i c_p) + b_i), where c is the response of its
filters to a document and p runs over the document. Word vectors and foreign adapters
are constant during a task, and

    max_p(alpha c_p) = max(alpha max_p c_p, alpha min_p c_p),

so that two numbers a document and filter, computed once, replace the convolutions of
every later step: exactly, gradients included.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear, pad
from typing_extensions import override

from clients.fedweit.task_model import TaskModel, TaskTensors, Tensors
from fcl_flower.core.types import Arrays, SparseArray
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import Head, MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.fedseit import CacheType
from strategies.fedweit import FedWeitParams

CHUNK = 256
REMEMBERED = 4
"""Tables of extremes that a process keeps: a client trains for many rounds on one."""


class ForeignBranches:
    """The foreign adapters of one task, frozen.

    Attributes:
        count: K, the number of adapters.
        names: of the tensors, in the order of the features.
    """

    def __init__(self, body: KimCnn, adapters: Sequence[Arrays]) -> None:
        """Keep ``adapters``: at least one, filters (F, D, width) by name."""
        self.count = len(adapters)
        self.names = sorted(adapters[0])
        self._body = body
        self._adapters = adapters

    @cached_property
    def digest(self) -> bytes:
        """Return what says which adapters and word vectors these are."""
        found = hashlib.blake2b(digest_size=16)
        for adapter in self._adapters:
            for name in self.names:
                tensor = adapter[name]
                found.update(f"{name} {tensor.shape}".encode())
                if isinstance(tensor, SparseArray):
                    found.update(tensor.indices.tobytes())
                    tensor = tensor.values
                found.update(tensor.tobytes())
        # A process meets few tables of word vectors: some rows tell them apart.
        table = self._body.table
        found.update(f"{table.device} {tuple(table.shape)}".encode())
        found.update(to_numpy(table[1 :: len(table) // 50 + 1]).tobytes())
        return found.digest()

    @cached_property
    def _filters(self) -> list[Tensor]:
        """All adapters' filters, stacked for each layer: (K F, D, width)."""
        device = str(self._body.table.device)
        return [
            torch.cat([to_torch(adapter[name], device) for adapter in self._adapters])
            for name in self.names
        ]

    def extremes(self, x: Tensor) -> Tensors:
        """Return largest and smallest responses by name, shape (2, batch, K, F)."""
        found = self._body.extremes(x, self._filters)
        return {
            name: part.reshape(*part.shape[:2], self.count, -1)
            for name, part in zip(self.names, found, strict=True)
        }


def branch_vectors(
    extremes: Tensor, rows: Tensor, alpha: Tensor, bias: Tensor
) -> Tensor:
    """Return z_1 .. z_K (equation 2) of one layer, shape (batch, K, F).

    Args:
        extremes: max and min over time, shape (2, documents, K, F).
        rows: which of the documents, shape (batch,).
        alpha: attention of each branch, shape (K,).
        bias: shape (K, F).
    """
    branch = torch.arange(len(alpha), device=alpha.device)
    reached = extremes[(alpha < 0).long(), rows.unsqueeze(1), branch].float()
    return torch.relu(torch.addcmul(bias, reached, alpha.unsqueeze(1)))


class BranchedWorkspace(TaskModel):
    """A task's model with branches: equation 3 in place of FedWeIT's equation 4.

    Attributes:
        branches: the foreign adapters.
        joined: the leaves that the branches add, for each layer of F filters
            ``attention/NAME`` (alpha, shape (K,)), ``bias/NAME`` (K, F) and
            ``foreign/NAME`` (W_f of shape (F, K F)), and over all layers ``local``
            (W_c, shape (features, 2 features)).
    """

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedWeitParams,
        task: int,
        tensors: TaskTensors,
        branches: ForeignBranches,
        joined: Tensors,
        *,
        stored: CacheType,
        limit: int,
    ) -> None:
        """Turn ``tensors`` and ``joined`` into leaves.

        Args:
            model: its body is a `KimCnn`.
            params: hyper-parameters.
            task: whose head answers.
            tensors: taken over.
            branches: the foreign adapters.
            joined: taken over.
            stored: how the extremes of the task's documents are kept.
            limit: bytes that they may take; above, each step computes its own.
        """
        super().__init__(model, params, task, tensors)
        self.branches, self.joined = branches, joined
        self._stored: CacheType = stored
        self._limit = limit
        self._table: Tensors | None = None
        self.take("branches", joined)
        for name in joined:
            if name.startswith("attention/"):
                self.rates[f"branches/{name}"] = params.attention_rate

    @override
    def prepared(self, data: TaskData) -> TaskData:
        """Number the documents in a first column, and compute their extremes once."""
        train, valid = data.train, data.valid
        count = len(train.y) + len(valid.y)
        width = 2 if self._stored == "float16" else 4
        numbers = sum(self.joined[f"bias/{name}"].numel() for name in self.tensors.base)
        if 2 * count * numbers * width > self._limit:
            return data
        words = max(train.x.shape[1], valid.x.shape[1])
        x = torch.cat([pad(p.x, (0, words - p.x.shape[1])) for p in (train, valid)])
        self._table = _table(_Request(self.branches, x, self._stored))
        numbered = torch.cat([torch.arange(count, device=x.device)[:, None], x], 1)
        return TaskData(
            Examples(numbered[: len(train.y)], train.y),
            Examples(numbered[len(train.y) :], valid.y),
            data.test,
            data.classes,
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits (equation 3) of documents, numbered if they are prepared.

        Dropout acts on z_c, as in Kim's network; z_f has none.
        """
        if self._table is None:
            extremes = self.branches.extremes(x)
            rows = torch.arange(len(x), device=x.device)
        else:
            extremes, rows, x = self._table, x[:, 0], x[:, 1:]
        name = f"heads.{self.model.head_index(self.task)}"
        private = self.tensors.private
        local, foreign = (private[f"{name}.weight"] @ self.joined["local"]).chunk(2, 1)
        logits = linear(self.local(x), local, private[f"{name}.bias"])
        head = cast(Head, self.model.heads[self.model.head_index(self.task)])
        return head.hide(logits + self.foreign(extremes, rows, foreign))

    def local(self, x: Tensor) -> Tensor:
        """Return z_c, shape (batch, features): the network without branches."""
        tensors = {**self.weights(), **self.tensors.private}
        body = {
            name.removeprefix("body."): tensor
            for name, tensor in tensors.items()
            if name.startswith("body.")
        }
        return cast(Tensor, functional_call(self.model.body, body, (x,)))

    def foreign(self, extremes: Tensors, rows: Tensor, head: Tensor) -> Tensor:
        """Return what z_f adds to the logits, shape (batch, classes).

        The head, W_c and W_f are linear: they are multiplied with each other, not one
        after the other with every document, which is the same for a small part of the
        products.

        Args:
            extremes: largest and smallest responses by name, (2, documents, K, F).
            rows: which of the documents, shape (batch,).
            head: the head times the foreign part of W_c, shape (classes, features).
        """
        widths = [len(self.tensors.base[name]) for name in self.branches.names]
        added = []
        for name, part in zip(
            self.branches.names, torch.split(head, widths, 1), strict=True
        ):
            found = branch_vectors(
                extremes[name],
                rows,
                self.joined[f"attention/{name}"],
                self.joined[f"bias/{name}"],
            )
            projection = part @ self.joined[f"foreign/{name}"]
            added.append(linear(found.flatten(1), projection))
        return torch.stack(added).sum(0)


@dataclass(frozen=True)
class _Request:
    """Extremes of documents; two requests are equal if their numbers would be."""

    branches: ForeignBranches = field(compare=False)
    x: Tensor = field(compare=False)
    stored: CacheType
    key: bytes = b""

    def __post_init__(self) -> None:
        documents = hashlib.blake2b(str(self.x.shape).encode(), digest_size=16)
        documents.update(to_numpy(self.x).tobytes())
        key = self.branches.digest + documents.digest()
        object.__setattr__(self, "key", key)


@lru_cache(maxsize=REMEMBERED)
def _table(request: _Request) -> Tensors:
    """Return the extremes of all documents by name, shape (2, documents, K, F)."""
    dtype = torch.float16 if request.stored == "float16" else torch.float32
    branches = request.branches
    parts = [branches.extremes(part) for part in torch.split(request.x, CHUNK)]
    return {
        name: torch.cat([part[name].to(dtype) for part in parts], 1)
        for name in branches.names
    }
