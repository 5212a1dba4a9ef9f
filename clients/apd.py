"""APD, client side: shared weights, a mask and a sparse adapter for each task.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432. Symbols: sigma is the group
``base``, v_t is ``masks/T``, tau_t is ``adapters/T``. M_t = sigmoid(v_t) has one entry
for each output channel, and theta_t = sigma * M_t + tau_t. A task is learned by
minimising

    L(theta_t) + lambda1 sum_i |tau_i|_1
        + lambda2 sum_{i<t} |theta_i - (sigma * M_i + tau_i)|^2,

with theta_i as it was before the task. After every s tasks the tau_i are consolidated.
The equations are those of the authors' code (github.com/jaehong31/APD), with these
differences:

- Proximal steps minimise |tau|_1, so that there are exact zeros.
- The tau_i of old tasks follow the present sigma in closed form, and their masks stay.
  The authors train both along.
- K-means++ draws the centres of groups anew. The authors' centres go on.
- The authors' second sum has a factor 1/2, and their Adam's rate falls by 5 % in each
  epoch. Here the rate is that of all methods.
- v_t starts as 0. The authors' starts as random numbers near 0.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from clients.fedweit.client import DecomposedLearner, known_tasks
from clients.fedweit.maths import TaskModel, TaskTensors, cluster_labels
from fcl_flower.algorithms.local_training import Penalty
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, TaskStage
from fcl_flower.training.tensors import dense
from strategies.apd import ApdParams
from strategies.fedweit import FedWeitParams
from strategies.fedweit.maths import EXACT, require_weights

LOCAL, GROUPS = "local/", "meta/groups/"


class ApdModel(TaskModel):
    """A task's model whose loss adds weight decay, and a penalty if there is one."""

    weight_decay: float
    penalty: Penalty = staticmethod(lambda: 0.0)

    def decay(self) -> Tensor | float:
        """Compute weight_decay / 2 (|tau|^2 + |v|^2), in the first task + |sigma|^2.

        This is the authors' code. In later tasks the old tasks hold sigma.
        """
        if not self.weight_decay:
            return 0.0
        tensors = self.tensors
        decayed = [*tensors.adapters.values(), *tensors.masks.values()]
        if not tensors.anchor:
            decayed += tensors.base.values()
        squares = torch.stack([values.square().sum() for values in decayed])
        return self.weight_decay / 2 * squares.sum()

    @override
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, y) + self.decay() + self.penalty()


A = TypeVar("A", bound=ApdParams)


class Apd(DecomposedLearner[A]):
    """A learner of all tasks alone, which shares the common part of adapters.

    State beside that of `DecomposedLearner`, whose ``foreign`` and ``attention`` stay
    empty:

    - ``local/G``: sigma~ of group G of tasks.
    - ``meta/groups/T``: the group of task T, by tensor; empty for a task after the last
      consolidation.
    """

    @override
    def prepare(self) -> None:
        """Refuse a model without weights to decompose."""
        params = self.params
        self.settings = FedWeitParams(
            lambda1=params.lambda1,
            lambda2=params.lambda2,
            lambda_mask=0.0,
            threshold=params.threshold,
            adapter_bits=EXACT,
            follow=0.0,
            gate="sigmoid",
            initial_gate=0.0,
            initial_adapter=params.initial_adapter,
            mask_rate=params.mask_rate,
        )
        require_weights(self.initial(), "APD")

    @override
    def start(self, state: Payload, received: Payload, task: int) -> Payload:
        adapters = {
            name: self.params.initial_adapter * dense(sigma)
            for name, sigma in state["base"].items()
        }
        return {**super().start(state, received, task), f"adapters/{task}": adapters}

    @override
    def finish_task(self, state: Payload, task: int) -> Payload:
        """Finish a task; consolidate if enough tasks have come since the last time."""
        finished = super().finish_task(state, task)
        tasks, every = known_tasks(finished), self.params.consolidate_every
        new = [t for t in tasks if GROUPS + str(t) not in finished]
        if not every or len(new) < every:
            return finished
        count = self.params.groups * len(tasks) // every
        seed = self.context.derive("consolidation", len(tasks))
        whole: dict[int, Arrays] = {}
        for t in tasks:
            local = local_of(finished, t)
            whole[t] = {
                name: dense(tau) + dense(local[name]) if name in local else tau
                for name, tau in finished[f"adapters/{t}"].items()
            }
        kept = {g: a for g, a in finished.items() if not g.startswith(LOCAL)}
        return {**kept, **consolidate(whole, count, self.params.gap, seed)}

    @override
    def upload(self, state: Payload, stage: TaskStage) -> Payload:
        return {}

    @override
    def task_tensors(self, state: Payload, task: int) -> TaskTensors:
        tensors = super().task_tensors(state, task)
        tensors.foreign = self.to_tensors(local_of(state, task))
        return tensors

    @override
    def build_task_model(self, state: Payload, task: int) -> ApdModel:
        tensors = self.task_tensors(state, task)
        work = ApdModel(self.model, self.settings, task, tensors)
        work.weight_decay = self.params.weight_decay
        return work


def local_of(state: Payload, task: int) -> Arrays:
    """Collect sigma~ of a task's groups, by tensor; none where the task is alone."""
    return {
        name: shared[name]
        for name, group in state.get(GROUPS + str(task), {}).items()
        if name in (shared := state.get(f"{LOCAL}{int(dense(group))}", {}))
    }


def consolidate(
    adapters: Mapping[int, Arrays], count: int, gap: float, seed: int
) -> dict[str, Arrays]:
    """Consolidate adapters layer by layer; return the groups of the state that change.

    K-means finds at most ``count`` groups of tasks by their tau plus their old sigma~.
    Then the function splits each group, entry by entry, with ``gap`` as beta:

        max tau_i - min tau_i <= beta:  sigma~ = (max tau_i + min tau_i) / 2, tau_i = 0,
        elsewhere:                      sigma~ = 0,                  tau_i stays.
    """
    tasks = list(adapters)
    changed: dict[str, dict[str, Array | SparseArray]] = {
        f"{kind}/{task}": {} for kind in ("adapters", "meta/groups") for task in tasks
    }
    for number, name in enumerate(adapters[tasks[0]]):
        values = [dense(adapters[task][name]) for task in tasks]
        groups = group_tasks(values, count, derive(seed, "layer", number))
        for group in sorted(set(groups)):
            members = [n for n, label in enumerate(groups) if label == group]
            left = [values[n] for n in members]
            if len(members) > 1:
                local, left = split_group(left, gap)
                kept = changed.setdefault(f"local/{group}", {})
                kept[name] = SparseArray.of_nonzero(local)
            for n, tau in zip(members, left, strict=True):
                changed[f"adapters/{tasks[n]}"][name] = SparseArray.of_nonzero(tau)
                changed[f"meta/groups/{tasks[n]}"][name] = np.asarray(group)
    return dict(changed)


def group_tasks(adapters: Sequence[Array], count: int, seed: int) -> list[int]:
    """Cluster tasks by their tau into at most ``count`` groups, counted from 0."""
    points = np.stack([adapter.reshape(-1) for adapter in adapters])
    # K-means sees only distances, which a rotation keeps. This rotation leaves a point
    # as many coordinates as there are tasks.
    rotated = np.asarray(np.linalg.qr(points.T, mode="r")).T
    labels = cluster_labels(rotated, min(count, len(points)), "k-means", seed)
    return [int(label) for label in labels]


def split_group(adapters: Sequence[Array], gap: float) -> tuple[Array, list[Array]]:
    """Split a group's adapters into sigma~ and the rest of each tau."""
    stacked = np.stack(adapters)
    high, low = stacked.max(0), stacked.min(0)
    alike = high - low <= gap
    local = np.where(alike, (high + low) / 2, 0)
    return local, [np.where(alike, 0, adapter) for adapter in adapters]
