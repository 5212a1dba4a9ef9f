"""FedSeIT, client side: foreign adapters are branches, not summands of the weights.

Chaudhary et al., Findings of EMNLP 2022, algorithm 1. The local branch is FedWeIT's
theta = B * g(m) + A (equation 1). Symbols: alpha and the biases of the branches are the
group ``branches/T``, W_c and W_f ``projections/T``; all are a task's own. With DLS the
projections travel. The released code never trains on a foreign adapter: its branches
see zeros, and alpha has no gradient.
"""

import numpy as np
from typing_extensions import override

from clients.fedseit.branches import BranchedWorkspace, ForeignBranches
from clients.fedweit.client import FedWeit
from clients.fedweit.client_state import current_task
from clients.fedweit.task_model import TaskModel
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.training.tensors import arrays_of, dense
from strategies.fedseit import FedSeitParams

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
    def sent(self, state: Payload, stage: TaskStage) -> Payload:
        encode_update = super().sent(state, stage)
        if not self.params.dls or f"projections/{stage.task}" not in state:
            return encode_update
        group = f"dense/{len(_sources(state, stage.task))}"
        return {**encode_update, group: state[f"projections/{stage.task}"]}

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
            self.torch({**state[f"branches/{task}"], **state[f"projections/{task}"]}),
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
    """Return W_c and W_f at the start of a task, the same for every client.

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
    """Return whose adapters a task's branches are, as ``client/task``."""
    pairs = dense(state[f"sources/{task}"]["foreign"]).tolist()
    return [f"{client}/{number}" for client, number in pairs]
