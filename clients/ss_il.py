"""SS-IL: new classes compete among themselves only, and so do old ones.

Ahn et al., ICCV 2021, https://arxiv.org/abs/2003.13947: a separated softmax,
distillation task by task, and a fixed ratio of new and replayed samples in a batch. The
average is that of FedET's tables (Liu et al., IJCAI 2023).

The authors' code normalises both parts of a batch together where a network has batch
normalisation. It divides the rate by the number of the task, and an epoch ends with the
memory if that is shorter. Here each part is normalised by itself, the rate is that of
the run, and samples of the memory are drawn anew for each step.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import training_inputs
from fcl_flower.algorithms.exemplars import (
    random_orders,
    remember_task,
    replay_samples,
)
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.core.types import Array, Payload, Update
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.distillation import distillation_loss
from fcl_flower.training.tensors import dense, to_torch
from strategies.ss_il import SsIlParams

TASKS, STORED = "memory/tasks", "augment-stored"


class SsIl(LocalTraining[SsIlParams]):
    """A learner that minimises ``CE_new + CE_old + strength * sum_s distillation_s``.

    The first term is over new samples among new classes, the second over samples of the
    memory among old classes. Their mean is over both. The third is over the classes of
    each old task s by themselves, for all samples.

    State beside that of `LocalTraining`: the groups of a `Teacher`, and ``memory``, the
    samples of old tasks. ``memory/tasks`` has the task in which each class was first
    met, int64, shape (classes,), -1 for none.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        memory = state.get("memory", {})
        params, model, context = self.params, self.model, self.context
        (x, y) = replay_samples(memory, context.device, without=stage.task)
        teacher = Teacher.of_turn(turn, model, received["base"])
        old, new, _ = teacher.places(context.device)
        first = self._first_tasks(state, teacher, stage.task)
        old_tasks = [
            to_torch(teacher.old[first[teacher.old] == task], context.device)
            for task in np.unique(first[teacher.old])
        ]
        taught = teacher.outputs(model, data.train)
        taught_again = teacher.outputs(model, Examples(x, y))
        smallest = context.training.smallest_batch
        replays = taught_again is not None and len(y) >= smallest
        if replays:
            inputs = training_inputs(model, x, context, stage.round, STORED)
        seed = context.derive("ss-il", stage.round)
        orders = random_orders(len(y), seed)

        def loss(batch: Batch) -> Tensor:
            every, count = batch.logits, len(batch.labels)
            among_new = mask_logits(every, new)
            total = cross_entropy(
                among_new, batch.labels, batch.weights, reduction="sum"
            )
            if taught is None:
                return total / count
            answers = taught.logits[batch.rows]
            if taught_again is not None and replays:
                size = max(smallest, round(params.replay_ratio * count))
                chosen = next(orders)[:size].to(y.device)
                again = model.heads[0](model.body(inputs.at(chosen)))
                among_old = mask_logits(again, old)
                total = total + cross_entropy(among_old, y[chosen], reduction="sum")
                every = torch.cat([every, again])
                answers = torch.cat([answers, taught_again.logits[chosen]])
            terms = [
                distillation_loss(every[:, task], answers[:, task], params.temperature)
                for task in old_tasks
            ]
            return total / len(every) + params.strength * torch.stack(terms).sum()

        state, update = self.fit_locally(turn, loss=loss)
        memory = remember_task(self, turn, memory)
        groups = {**teacher.record(stage), "memory": memory, TASKS: {"first": first}}
        return {**state, **groups}, update

    def _first_tasks(self, state: Payload, teacher: Teacher, task: int) -> Array:
        """Find the task in which each class was first met; -1 for none."""
        none = np.full(self.model.classes, -1, np.int64)
        first = np.array(dense(state.get(TASKS, {}).get("first", none)))
        first[teacher.new[first[teacher.new] < 0]] = task
        return first
