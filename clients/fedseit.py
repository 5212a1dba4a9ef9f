"""FedSeIT, client side: foreign adapters are branches, not summands of the weights.

Chaudhary et al., Findings of EMNLP 2022, algorithm 1. The local branch is FedWeIT's
theta = B * g(m) + A (equation 1). Symbols: alpha and the biases of the branches are the
group ``branches/T``, W_c and W_f ``projections/T``; all are a task's own. With DLS the
projections travel. The released code never trains on a foreign adapter: its branches
see zeros, and alpha has no gradient.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear, pad
from typing_extensions import override

from clients.fedweit.client import FedWeit, current_task
from clients.fedweit.task_model import TaskModel, TaskTensors, Tensors
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import Head, MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.training.tensors import arrays_of, dense, to_numpy, to_torch
from strategies.fedseit import CacheType, FedSeitParams
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
        """Digest of these adapters and word vectors."""
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
        """Compute largest and smallest responses by name, shape (2, batch, K, F)."""
        found = self._body.extremes(x, self._filters)
        return {
            name: part.reshape(*part.shape[:2], self.count, -1)
            for name, part in zip(self.names, found, strict=True)
        }


def branch_vectors(
    extremes: Tensor, rows: Tensor, alpha: Tensor, bias: Tensor
) -> Tensor:
    """Compute z_1 .. z_K (equation 2) of one layer, shape (batch, K, F).

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
        self.add_leaves("branches", joined)
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
        """Compute logits (equation 3) of documents, numbered if they are prepared.

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
        """Compute z_c, shape (batch, features): the network without branches."""
        tensors = {**self.weights(), **self.tensors.private}
        body = {
            name.removeprefix("body."): tensor
            for name, tensor in tensors.items()
            if name.startswith("body.")
        }
        return cast(Tensor, functional_call(self.model.body, body, (x,)))

    def foreign(self, extremes: Tensors, rows: Tensor, head: Tensor) -> Tensor:
        """Compute what z_f adds to the logits, shape (batch, classes).

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
    """Compute the extremes of all documents by name, shape (2, documents, K, F)."""
    dtype = torch.float16 if request.stored == "float16" else torch.float32
    branches = request.branches
    parts = [branches.extremes(part) for part in torch.split(request.x, CHUNK)]
    return {
        name: torch.cat([part[name].to(dtype) for part in parts], 1)
        for name in branches.names
    }


MEGABYTE = 2**20


class FedSeit(FedWeit[FedSeitParams]):
    """Learn a task with branches beside the local one; keep old tasks as they were.

    State beside that of `FedWeit`, whose ``foreign`` and ``attention`` stay empty:

    - ``library/C/S``: a foreign adapter that a task uses.
    - ``sources/T``: client and task of each branch, shape (K, 2).
    - ``branches/T``: for each layer of F filters ``attention/NAME``, shape (K,), and
      ``bias/NAME``, (K, F).
    - ``projections/T``: ``local``, shape (features, 2 features), and for each layer
      ``foreign/NAME``, (F, K F).

    A task without foreign adapters has neither branches nor projections: it is the
    local model.
    """

    def __init__(
        self, params: FedSeitParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Refuse a model that is not for text."""
        super().__init__(params, model, context)
        expected = "kim-cnn for fedseit, which learns from text"
        self._body = model.body_of(KimCnn, expected)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        task = stage.task
        if f"projections/{task}" in state:
            shared = received.get(f"dense/{len(_sources(state, task))}")
            if shared is not None:
                state = {**state, f"projections/{task}": shared}
        return super().train(state, received, stage, data)

    @override
    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        begun = super().start(state, {}, task)
        sources = sorted(
            (int(client), int(number))
            for group in received
            if group.startswith("adapters/")
            for _, client, number in [group.split("/")]
        )
        if not sources:
            return begun
        # A client may hand in a task's adapter again: tasks of the past stand on what
        # they had, so that is what a new one gets as well.
        library = {
            f"library/{client}/{number}": state.get(
                f"library/{client}/{number}", received[f"adapters/{client}/{number}"]
            )
            for client, number in sources
        }
        count = len(sources)
        branches: dict[str, Array] = {}
        for name, weight in state["base"].items():
            branches[f"attention/{name}"] = np.full(
                count, self.params.initial_attention, np.float32
            )
            branches[f"bias/{name}"] = np.zeros((count, weight.shape[0]), np.float32)
        shared = received.get(f"dense/{count}")
        return {
            **begun,
            **library,
            f"sources/{task}": {"foreign": np.array(sources, np.int64)},
            f"branches/{task}": branches,
            f"projections/{task}": shared
            or initial_projections(state["base"], count, self.context.seed),
        }

    @override
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        groups = super().upload(state, stage)
        if not self.params.dls or f"projections/{stage.task}" not in state:
            return groups
        group = f"dense/{len(_sources(state, stage.task))}"
        return {**groups, group: state[f"projections/{stage.task}"]}

    @override
    def attention_weights(self, state: Payload) -> dict[str, float]:
        task = current_task(state)
        if f"branches/{task}" not in state:
            return {}
        alpha = [
            np.abs(dense(values))
            for name, values in state[f"branches/{task}"].items()
            if name.startswith("attention/")
        ]
        sources = _sources(state, task)
        weights = np.mean(alpha, axis=0)
        return {
            f"attention/{source}": float(weight)
            for source, weight in zip(sources, weights, strict=True)
        }

    @override
    def build_task_model(self, state: Payload, task: int) -> TaskModel:
        tensors = self.task_tensors(state, task)
        if f"branches/{task}" not in state:
            return TaskModel(self.model, self.params, task, tensors)
        foreign = [f"library/{source}" for source in _sources(state, task)]
        branches = ForeignBranches(self._body, [state[g] for g in foreign])
        return BranchedWorkspace(
            self.model,
            self.params,
            task,
            tensors,
            branches,
            self.to_tensors(
                {**state[f"branches/{task}"], **state[f"projections/{task}"]}
            ),
            stored=self.params.cache,
            limit=self.params.cache_megabytes * MEGABYTE,
        )

    @override
    def changed(self, work: TaskModel, task: int) -> Payload:
        changed = super().changed(work, task)
        if not isinstance(work, BranchedWorkspace):
            return changed
        found: dict[str, dict[str, Array]] = {"branches": {}, "projections": {}}
        for name, values in arrays_of(work.joined).items():
            own = name.startswith(("attention/", "bias/"))
            found["branches" if own else "projections"][name] = values
        return {**changed, **{f"{kind}/{task}": group for kind, group in found.items()}}


def initial_projections(base: Arrays, count: int, seed: int) -> dict[str, Array]:
    """Draw W_c and W_f at the start of a task, the same for every client.

    W_c begins as [I, 0], so that a task begins as its local model; W_f is uniform
    (Glorot), so that the foreign part of W_c has a gradient.

    Args:
        base: the filters of each layer, (F, D, width) by name.
        count: K, at least 1.
        seed: the run's seed.
    """
    rng = np.random.default_rng(derive(seed, "projection", count))
    features = sum(weight.shape[0] for weight in base.values())
    found = {"local": np.eye(features, 2 * features)}
    for name, weight in sorted(base.items()):
        filters = weight.shape[0]
        limit = np.sqrt(6 / (filters + count * filters))
        shape = (filters, count * filters)
        found[f"foreign/{name}"] = rng.uniform(-limit, limit, shape)
    return {name: values.astype(np.float32) for name, values in found.items()}


def _sources(state: Payload, task: int | None) -> list[str]:
    """List whose adapters a task's branches are, as ``client/task``."""
    pairs = dense(state[f"sources/{task}"]["foreign"]).tolist()
    return [f"{client}/{number}" for client, number in pairs]
