"""FedSeIT, client side: foreign adapters are branches, not summands of the weights.

Chaudhary et al., Findings of EMNLP 2022, algorithm 1. The local branch is FedWeIT's
theta = B * g(m) + A (equation 1). Symbols: alpha and the biases of the branches are the
group ``branches/T``, W_c and W_f are ``projections/T``. All of them belong to one task.
With DLS the projections travel. The released code never trains on a foreign adapter:
its branches see zeros, and alpha has no gradient.
"""

import copy
import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, pad
from typing_extensions import override

from clients.fedweit.client import ADAPTERS, FedWeit, current_task, mean_attention
from clients.fedweit.maths import TaskModel, TaskTensors, Tensors
from fcl_flower.algorithms.base import Turn
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    Array,
    Arrays,
    ClientTask,
    Payload,
    SparseArray,
    TaskStage,
    Update,
)
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import CLOSED, Head, MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.training.tensors import arrays_of, dense, to_numpy, to_torch
from strategies.fedseit import FedSeitParams

CHUNK = 256
MEGABYTE = 2**20
REMEMBERED = 4
"""The number of tables of extremes that a process keeps; a client trains many rounds on
one."""
_tables: dict[bytes, Tensors] = {}


def branch_vectors(
    extremes: Tensor, rows: Tensor, alpha: Tensor, bias: Tensor
) -> Tensor:
    """Compute z_1 .. z_K (equation 2) of one layer, shape (batch, K, F).

    Word vectors and adapters are frozen. So max_t relu(alpha c_t + b) is relu(max(alpha
    max_t c_t, alpha min_t c_t) + b) of the responses c_t over time.

    Args:
        extremes: max and min of all documents, shape (2, documents, K, F).
        rows: the batch's places among the documents, shape (batch,).
        alpha: shape (K,).
        bias: shape (K, F).
    """
    branch = torch.arange(len(alpha), device=alpha.device)
    reached = extremes[(alpha < 0).long(), rows.unsqueeze(1), branch].float()
    return torch.relu(torch.addcmul(bias, reached, alpha.unsqueeze(1)))


class BranchedModel(TaskModel):
    """A task's model with branches: equation 3 in place of FedWeIT's equation 4.

    Attributes:
        adapters: the K foreign adapters, frozen: filters (F, D, width) by name.
        joined: the leaves that the branches add. Each layer of F filters has
            ``attention/NAME`` (alpha, shape (K,)), ``bias/NAME`` (K, F) and
            ``foreign/NAME`` (W_f of shape (F, K F)). All layers share ``local`` (W_c,
            shape (features, 2 features)).
    """

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedSeitParams,
        task: int,
        tensors: TaskTensors,
        adapters: Sequence[Arrays],
        joined: Tensors,
    ) -> None:
        """Turn ``tensors`` and ``joined`` into leaves, which the model then owns."""
        super().__init__(model, params, task, tensors)
        self.adapters, self.joined = adapters, joined
        self.names = sorted(adapters[0])
        self.body = cast(KimCnn, model.body)
        self.half = params.cache == "float16"
        self.limit = params.cache_megabytes * MEGABYTE
        self.table: Tensors | None = None
        self.add_leaves("branches", joined)
        for name in joined:
            if name.startswith("attention/"):
                self.rates[f"branches/{name}"] = params.attention_rate

    @override
    def prepared(self, data: TaskData) -> TaskData:
        """Number the documents in a first column, and compute their extremes once."""
        train, valid = data.train, data.valid
        count = len(train.y) + len(valid.y)
        numbers = sum(self.joined[f"bias/{name}"].numel() for name in self.tensors.base)
        if 2 * count * numbers * (2 if self.half else 4) > self.limit:
            return data
        words = max(train.x.shape[1], valid.x.shape[1])
        x = torch.cat([pad(p.x, (0, words - p.x.shape[1])) for p in (train, valid)])
        self.table = self.remembered_extremes(x)
        numbered = torch.cat([torch.arange(count, device=x.device)[:, None], x], 1)
        return TaskData(
            Examples(numbered[: len(train.y)], train.y),
            Examples(numbered[len(train.y) :], valid.y),
            data.test,
            data.classes,
        )

    def remembered_extremes(self, x: Tensor) -> Tensors:
        """Compute the extremes of all documents, unless the process still has them."""
        key = self.digest(x)
        table = _tables.pop(key, None)
        if table is None:
            dtype = torch.float16 if self.half else torch.float32
            parts = [self.extremes(part) for part in torch.split(x, CHUNK)]
            table = {
                name: torch.cat([part[name].to(dtype) for part in parts], 1)
                for name in self.names
            }
        _tables[key] = table  # the last entry is the one last used
        if len(_tables) > REMEMBERED:
            del _tables[next(iter(_tables))]
        return table

    def digest(self, x: Tensor) -> bytes:
        """Compute a digest of everything that the extremes of documents depend on."""
        digest = hashlib.blake2b(f"{self.half} {x.shape}".encode(), digest_size=16)
        digest.update(to_numpy(x).tobytes())
        for adapter in self.adapters:
            for name in self.names:
                tensor = adapter[name]
                digest.update(f"{name} {tensor.shape}".encode())
                if isinstance(tensor, SparseArray):
                    digest.update(tensor.indices.tobytes())
                    tensor = tensor.values
                digest.update(tensor.tobytes())
        # A process meets few tables of word vectors, so some rows tell them apart.
        table = self.body.table
        digest.update(f"{table.device} {tuple(table.shape)}".encode())
        digest.update(to_numpy(table[1 :: len(table) // 50 + 1]).tobytes())
        return digest.digest()

    @cached_property
    def filters(self) -> list[Tensor]:
        """The filters of all adapters, stacked for each layer: (K F, D, width)."""
        device = str(self.body.table.device)
        return [
            torch.cat([to_torch(adapter[name], device) for adapter in self.adapters])
            for name in self.names
        ]

    def extremes(self, x: Tensor) -> Tensors:
        """Compute largest and smallest responses by name, shape (2, batch, K, F)."""
        extremes = self.body.extremes(x, self.filters)
        return {
            name: part.reshape(*part.shape[:2], len(self.adapters), -1)
            for name, part in zip(self.names, extremes, strict=True)
        }

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (equation 3) of documents, numbered if they are prepared.

        Dropout acts on z_c, as in Kim's network; z_f has none. The head, W_c and W_f
        are linear, so they are multiplied with each other first. That gives the same
        result as one after the other for every document, with few of the products.
        """
        if self.table is None:
            extremes = self.extremes(x)
            rows = torch.arange(len(x), device=x.device)
        else:
            extremes, rows, x = self.table, x[:, 0], x[:, 1:]
        index = self.model.head_index(self.task)
        private = self.tensors.private
        weight, bias = (private[f"heads.{index}.{kind}"] for kind in ("weight", "bias"))
        local, foreign = (weight @ self.joined["local"]).chunk(2, 1)
        logits = linear(self.local(x), local, bias)
        widths = [len(self.tensors.base[name]) for name in self.names]
        added = []
        for name, part in zip(self.names, torch.split(foreign, widths, 1), strict=True):
            alpha = self.joined[f"attention/{name}"]
            vectors = branch_vectors(
                extremes[name], rows, alpha, self.joined[f"bias/{name}"]
            )
            projection = part @ self.joined[f"foreign/{name}"]
            added.append(linear(vectors.flatten(1), projection))
        head = cast(Head, self.model.heads[index])
        return head.hide(logits + torch.stack(added).sum(0))

    def local(self, x: Tensor) -> Tensor:
        """Compute z_c, shape (batch, features): the network without branches."""
        body = {
            name.removeprefix("body."): tensor
            for name, tensor in self.weights().items()
            if name.startswith("body.")
        }
        return cast(Tensor, functional_call(self.body, body, (x,)))


class BranchedNetwork(nn.Module):
    """A `BranchedModel` that only predicts, with its matrices multiplied out."""

    def __init__(self, work: BranchedModel) -> None:
        """Copy what the task has learned."""
        super().__init__()
        self.body = copy.deepcopy(work.body).eval().requires_grad_(False)
        weights = {name: part.detach() for name, part in work.weights().items()}
        body = {n: t for n, t in weights.items() if n.startswith("body.")}
        self.body.load_state_dict(
            {name.removeprefix("body."): tensor for name, tensor in body.items()},
            strict=False,
        )
        index = work.model.head_index(work.task)
        self.closed = cast(Head, work.model.heads[index]).closed
        joined = {name: tensor.detach() for name, tensor in work.joined.items()}
        weight = weights[f"heads.{index}.weight"]
        local, foreign = (weight @ joined["local"]).chunk(2, 1)
        self.head = nn.Linear(local.shape[1], local.shape[0])
        self.head.load_state_dict(
            {"weight": local, "bias": weights[f"heads.{index}.bias"]}
        )
        self.head.requires_grad_(False)
        widths = [len(work.tensors.base[name]) for name in work.names]
        parts = torch.split(foreign, widths, 1)
        self._layers = len(widths)
        for number, (name, part) in enumerate(zip(work.names, parts, strict=True)):
            self.register_buffer(f"filters_{number}", work.filters[number])
            self.register_buffer(f"attention_{number}", joined[f"attention/{name}"])
            self.register_buffer(f"bias_{number}", joined[f"bias/{name}"])
            foreign_part = part @ joined[f"foreign/{name}"]
            self.register_buffer(f"foreign_{number}", foreign_part)

    @override
    def forward(self, x: Tensor) -> Tensor:
        layers = range(self._layers)
        logits: Tensor = self.head(self.body(x))
        filters = [self.get_buffer(f"filters_{number}") for number in layers]
        for number, extremes in enumerate(self.body.extremes(x, filters)):
            alpha, bias = (
                self.get_buffer(f"{kind}_{number}") for kind in ("attention", "bias")
            )
            largest, smallest = extremes.reshape(*extremes.shape[:2], *bias.shape)
            reached = torch.where(alpha[:, None] < 0, smallest, largest)
            branches = torch.relu(bias + reached * alpha[:, None])
            foreign = self.get_buffer(f"foreign_{number}")
            logits = logits + linear(branches.flatten(1), foreign)
        closed = self.closed
        return logits if closed is None else logits.masked_fill(closed, CLOSED)


class FedSeit(FedWeit[FedSeitParams]):
    """A learner of tasks with branches beside the local one; old tasks stay.

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

    augments = False  # the responses of foreign adapters are computed once

    @override
    def prepare(self) -> None:
        """Refuse a model that is not for text."""
        super().prepare()
        self.model.body_of(KimCnn, "kim-cnn for fedseit, which learns from text")

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, _ = turn
        task = stage.task
        if f"projections/{task}" in state:
            shared = received.get(f"dense/{len(_sources(state, task))}")
            if shared is not None:
                state = {**state, f"projections/{task}": shared}
        return super().train(turn._replace(state=state))

    @override
    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        begun = super().start(state, {}, task)
        sources = sorted(
            ClientTask.of(group.removeprefix(ADAPTERS))
            for group in received
            if group.startswith(ADAPTERS)
        )
        if not sources:
            return begun
        # Another client may send a task's adapter again. Old tasks need the adapter
        # that they were trained with, so a new task gets that one too.
        library = {
            (kept := source.group("library")): state.get(
                kept, received[source.group("adapters")]
            )
            for source in sources
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
        branches = state[f"branches/{task}"]
        alpha = [branches[n] for n in branches if n.startswith("attention/")]
        return mean_attention(_sources(state, task), alpha)

    @override
    def build_task_model(self, state: Payload, task: int) -> TaskModel:
        if f"branches/{task}" not in state:
            return super().build_task_model(state, task)
        joined = {**state[f"branches/{task}"], **state[f"projections/{task}"]}
        return BranchedModel(
            self.model,
            self.params,
            task,
            self.task_tensors(state, task),
            [state[f"library/{source}"] for source in _sources(state, task)],
            self.to_tensors(joined),
        )

    @override
    def predictor(
        self, state: Payload, received: Payload, task: int
    ) -> nn.Module | None:
        if f"masks/{task}" in state:
            work = self.build_task_model(state, task)
            if isinstance(work, BranchedModel):
                return BranchedNetwork(work)
        return super().predictor(state, received, task)

    @override
    def changed(self, work: TaskModel, task: int) -> Payload:
        changed = super().changed(work, task)
        if not isinstance(work, BranchedModel):
            return changed
        by_kind: dict[str, dict[str, Array]] = {"branches": {}, "projections": {}}
        for name, values in arrays_of(work.joined).items():
            own = name.startswith(("attention/", "bias/"))
            by_kind["branches" if own else "projections"][name] = values
        return {
            **changed,
            **{f"{kind}/{task}": group for kind, group in by_kind.items()},
        }


def initial_projections(base: Arrays, count: int, seed: int) -> dict[str, Array]:
    """Draw W_c and W_f of K branches at the start of a task, alike for every client.

    W_c begins as [I, 0], so that a task begins as its local model. W_f is uniform
    (Glorot), so that the foreign part of W_c has a gradient.
    """
    rng = np.random.default_rng(derive(seed, "projection", count))
    features = sum(weight.shape[0] for weight in base.values())
    drawn = {"local": np.eye(features, 2 * features)}
    for name, weight in sorted(base.items()):
        filters = weight.shape[0]
        limit = np.sqrt(6 / (filters + count * filters))
        shape = (filters, count * filters)
        drawn[f"foreign/{name}"] = rng.uniform(-limit, limit, shape)
    return {name: values.astype(np.float32) for name, values in drawn.items()}


def _sources(state: Payload, task: int | None) -> list[str]:
    """List the clients and tasks of a task's branches, as ``client/task``."""
    pairs = dense(state[f"sources/{task}"]["foreign"]).tolist()
    return [ClientTask(*pair).name for pair in pairs]
