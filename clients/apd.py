"""APD, client side: shared weights, a mask and a sparse adapter for each task.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432. Symbols: sigma is the group
``base``, v_t ``masks/T``, tau_t ``adapters/T``. A task is learned by minimising

    L(sigma * M_t + tau_t) + lambda1 sum_i |tau_i|_1
        + lambda2 sum_{i<t} |theta_i - (sigma * M_i + tau_i)|^2,

theta_i as it was before the task. After every s tasks the tau_i are consolidated
(`clients.apd`).

The equations are those of the authors' code (github.com/jaehong31/APD). What differs:
|tau|_1 by proximal steps, so that there are exact zeros; the tau_i of old tasks in
closed form for the sigma that is, with masks that stay, where the authors train both
along. There the second sum has a factor 1/2, v_t starts as random numbers near 0 (here
0), and Adam's rate falls by 5 % in each epoch (here as for all).

The torch side of one task of APD: FedWeIT's, with weight decay and a pull.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432: theta_t = sigma * M_t + tau_t,
with M_t = sigmoid(v_t), one entry for each output channel. With sigma~ of the task's
group in the place of other clients' adapters this is `TaskModel`, which shrinks tau and
holds old tasks.

Hierarchical knowledge consolidation: what adapters of some tasks have in common.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432, as the authors' code has it.
K-means finds groups of tasks by their tau; then, entry by entry of a group,

    max tau_i - min tau_i <= beta:  sigma~ = (max tau_i + min tau_i) / 2,  tau_i = 0,
    elsewhere:                      sigma~ = 0,                  tau_i stays.

Each layer is clustered by itself. There centres go on from those of the last time;
here k-means++ draws them anew.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from clients.fedweit.client import FedWeit, known_tasks
from clients.fedweit.maths import cluster_labels
from clients.fedweit.task_model import TaskModel, TaskTensors
from fcl_flower.algorithms.base import ClientContext, ClientLearner
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense
from strategies.apd import ApdParams
from strategies.fedweit import FedWeitParams


class ApdModel(TaskModel):
    """Minimise what `TaskModel` does, weight decay, and a distance of sigma.

    Weight decay is that of the authors' code.
    """

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedWeitParams,
        task: int,
        tensors: TaskTensors,
        *,
        weight_decay: float,
        mu: float,
    ) -> None:
        """Turn ``tensors`` into leaves; sigma now is what mu pulls it back to."""
        self.weight_decay, self.mu = weight_decay, mu
        self.start = {name: sigma.clone() for name, sigma in tensors.base.items()}
        super().__init__(model, params, task, tensors)

    @override
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, y) + self.decay() + self.pull()

    def decay(self) -> Tensor | float:
        """Compute weight_decay / 2 (|tau|^2 + |v|^2), in the first task + |sigma|^2.

        Later sigma is held by the old tasks.
        """
        if not self.weight_decay:
            return 0.0
        tensors = self.tensors
        decayed = [*tensors.adapters.values(), *tensors.masks.values()]
        if not tensors.old:
            decayed += tensors.base.values()
        squares = torch.stack([values.square().sum() for values in decayed])
        return self.weight_decay / 2 * squares.sum()

    def pull(self) -> Tensor | float:
        """Compute mu / 2 |sigma - sigma at the start|^2 (FedProx, equation 2)."""
        if not self.mu:
            return 0.0
        base = self.tensors.base
        moved = [
            (base[name] - start).square().sum() for name, start in self.start.items()
        ]
        return self.mu / 2 * torch.stack(moved).sum()


def split_group(adapters: Sequence[Array], gap: float) -> tuple[Array, list[Array]]:
    """Split off sigma~ of a group, and what is left of the tau of each of its tasks.

    Args:
        adapters: tau of each task, all of one shape; at least one.
        gap: beta, at least 0.
    """
    stacked = np.stack(adapters)
    high, low = stacked.max(0), stacked.min(0)
    alike = high - low <= gap
    local = np.where(alike, (high + low) / 2, 0)
    return local, [np.where(alike, 0, adapter) for adapter in adapters]


def group_tasks(adapters: Sequence[Array], count: int, seed: int) -> list[int]:
    """Cluster tasks to groups, counted from 0.

    Args:
        adapters: tau of each task, all of one shape; at least one.
        count: groups, at least 1; there are never more than tasks.
        seed: of the clustering.
    """
    points = np.stack([adapter.reshape(-1) for adapter in adapters])
    # K-means sees no more of a point than its distances, which a rotation leaves as
    # they are: in this one a point has as many coordinates as there are tasks.
    rotated = np.asarray(np.linalg.qr(points.T, mode="r")).T
    labels = cluster_labels(rotated, min(count, len(points)), "k-means", seed)
    return [int(label) for label in labels]


def consolidate(
    adapters: Mapping[int, Arrays], count: int, gap: float, seed: int
) -> dict[str, Arrays]:
    """Consolidate the adapters: the groups of a client's state that change.

    Args:
        adapters: of each task, with what its group had before.
        count: groups of tasks, at least 1.
        gap: beta, at least 0.
        seed: of the clustering.

    Returns:
        ``adapters/T``: tau, sparse; ``local/G``: sigma~ of the tensors for which group
        G has several tasks, sparse; ``meta/groups/T``: the task's group, by tensor.
    """
    tasks = list(adapters)
    changed: dict[str, dict[str, Array | SparseArray]] = {
        f"{kind}/{task}": {} for kind in ("adapters", "meta/groups") for task in tasks
    }
    for number, name in enumerate(adapters[tasks[0]]):
        values = [dense(adapters[task][name]) for task in tasks]
        groups = group_tasks(values, count, derive(seed, "layer", number))
        for group in sorted(set(groups)):
            members = [n for n, found in enumerate(groups) if found == group]
            left = [values[n] for n in members]
            if len(members) > 1:
                local, left = split_group(left, gap)
                kept = changed.setdefault(f"local/{group}", {})
                kept[name] = SparseArray.of_nonzero(local)
            for n, tau in zip(members, left, strict=True):
                changed[f"adapters/{tasks[n]}"][name] = SparseArray.of_nonzero(tau)
                changed[f"meta/groups/{tasks[n]}"][name] = np.asarray(group)
    return dict(changed)


LOCAL, GROUPS = "local/", "meta/groups/"


class ApdTasks(FedWeit[FedWeitParams]):
    """Learn a task with its own mask and adapter; share what adapters have in common.

    State beside that of `FedWeit`, whose ``foreign`` and ``attention`` stay empty:

    - ``local/G``: sigma~ of group G of tasks.
    - ``meta/groups/T``: the group of task T, by tensor; nothing of one that came after
      the last consolidation.
    """

    def __init__(
        self,
        params: ApdParams,
        model: MultiHeadModel,
        context: ClientContext,
        mu: float = 0.0,
    ) -> None:
        """Refuse a model in which there is nothing to decompose.

        Args:
            params: hyper-parameters.
            model: freshly initialised.
            context: where the learner runs.
            mu: weight of staying near the received sigma, at least 0.
        """
        equal = FedWeitParams(
            lambda1=params.lambda1,
            lambda2=params.lambda2,
            lambda_mask=0.0,
            threshold=params.threshold,
            gate="sigmoid",
            initial_gate=0.0,
            initial_adapter=params.initial_adapter,
            mask_rate=params.mask_rate,
        )
        super().__init__(equal, model, context)
        self.apd, self.mu = params, mu
        if not self.initial():
            raise ConfigError(
                "model: got a body without trained weights, expected one that has "
                "them: APD decomposes nothing else"
            )

    @override
    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        adapters = {
            name: self.apd.initial_adapter * dense(sigma)
            for name, sigma in state["base"].items()
        }
        return {**super().start(state, received, task), f"adapters/{task}": adapters}

    @override
    def finish_task(self, state: Payload, task: int) -> Payload:
        """Finish a task; consolidate when enough have come since the last time."""
        finished = super().finish_task(state, task)
        known, every = known_tasks(finished), self.apd.consolidate_every
        new = [t for t in known if GROUPS + str(t) not in finished]
        if not every or len(new) < every:
            return finished
        count = self.apd.groups * len(known) // every
        context = self.context
        seed = derive(context.seed, "consolidation", context.client, len(known))
        whole = {t: self.whole_adapter(finished, t) for t in known}
        kept = {g: a for g, a in finished.items() if not g.startswith(LOCAL)}
        return {**kept, **consolidate(whole, count, self.apd.gap, seed)}

    @override
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        return {"base": state["base"]}

    @override
    def task_tensors(self, state: Payload, task: int) -> TaskTensors:
        tensors = super().task_tensors(state, task)
        tensors.foreign = self.to_tensors(local_of(state, task))
        return tensors

    @override
    def build_task_model(self, state: Payload, task: int) -> ApdModel:
        return ApdModel(
            self.model,
            self.params,
            task,
            self.task_tensors(state, task),
            weight_decay=self.apd.weight_decay,
            mu=self.mu,
        )

    def whole_adapter(self, state: Payload, task: int) -> Arrays:
        """Compute tau + sigma~ of a finished task."""
        local = local_of(state, task)
        return {
            name: dense(tau) + dense(local[name]) if name in local else tau
            for name, tau in state[f"adapters/{task}"].items()
        }


def local_of(state: Payload, task: int) -> Arrays:
    """Collect sigma~ of a task's groups, by tensor; nothing where it has one alone."""
    return {
        name: shared[name]
        for name, group in state.get(GROUPS + str(task), {}).items()
        if name in (shared := state.get(f"{LOCAL}{int(dense(group))}", {}))
    }


A = TypeVar("A", bound=ApdParams)


class Apd(ClientLearner[A]):
    """Learn all tasks alone; the state is that of `ApdTasks`."""

    def __init__(
        self, params: A, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Refuse a model in which there is nothing to decompose."""
        super().__init__(params, model, context)
        self.tasks = ApdTasks(params, model, context)

    @override
    def init(self) -> Payload:
        return self.tasks.init()

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        state, update = self.tasks.train(state, {"base": {}}, stage, data)
        return state, Update({}, update.num_examples, update.metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        return self.tasks.predict(state, received, task, x)
