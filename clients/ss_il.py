"""SS-IL: new classes and old ones compete among themselves only.

Ahn et al., ICCV 2021, https://arxiv.org/abs/2003.13947: a separated softmax,
distillation task by task, and batches in which new samples and those of the memory
stand in one ratio. Averaged as FedET's tables do (Liu et al., IJCAI 2023).

The authors' code normalises both parts of a batch together where a network normalises
by batches, divides the rate by the number of the task, and ends an epoch with the
memory if that is the shorter. Here each part is normalised by itself, the rate is that
of the run, and samples of the memory are drawn anew for each step.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.lwf.teacher import MODEL, Teacher, distillation
from clients.replay.buffer import replay_samples
from clients.replay.memory import remember_task
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import dense, to_torch
from strategies.ss_il import SsIlParams

TASKS = "memory/tasks"


class SsIl(LocalTraining[SsIlParams]):
    """Minimise ``CE_new + CE_old + strength * sum_s distillation_s``.

    The first two are over new samples among new classes and over samples of the memory
    among old classes, the mean over both; the third is over the classes of each old
    task s by themselves, for all samples.

    State besides: that of `Teacher`, ``memory``, and ``memory/tasks``: in
    which task each class was first met, int64, shape (classes,), -1 for none.
    """

    temporary = (*LocalTraining.temporary, MODEL)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, memory, model = self.context, state.get("memory", {}), self.model
        device, labels = context.device, data.train.y
        teacher = Teacher.of_task(state, received, stage, model, labels)
        met = first_met(state, teacher, stage.task, model.classes)
        old = replay_samples(memory, device, without=stage.task)
        self._new = to_torch(teacher.new, device)
        self._old = to_torch(teacher.old, device)
        self._tasks = [
            to_torch(teacher.old[met[teacher.old] == task], device)
            for task in np.unique(met[teacher.old])
        ]
        if teacher.teaches and len(labels):
            self._taught = teacher.outputs(model, data.train).logits
        self._replayed = Examples(old.x[:0], old.y[:0])
        if teacher.teaches and len(old.y):
            self._taught_again = teacher.outputs(model, old).logits
            self._replayed = Examples(frozen_features(model, old.x), old.y)
        seed = derive(context.seed, "ss-il", context.client, stage.round)
        self._draw = torch.Generator().manual_seed(seed)
        after, update = super().train(state, received, stage, data)
        params = self.params
        memory = remember_task(memory, data.train, params, model, context, stage)
        kept = {"memory": memory, TASKS: {"first": met}}
        return {**after, **teacher.kept(stage), **kept}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Return the loss of a batch and of samples that are drawn from the memory."""
        new = mask_logits(logits, self._new)
        total, count = cross_entropy(new, labels, reduction="sum"), len(labels)
        if not len(self._old):
            return total / count
        every, taught = logits, self._taught[rows]
        smallest = self.context.training.smallest_batch
        if len(self._replayed.y) >= smallest:
            wanted = max(smallest, round(self.params.replay_ratio * count))
            order = torch.randperm(len(self._replayed.y), generator=self._draw)
            chosen = order[:wanted].to(labels.device)
            again = self.model.heads[0](self.model.body(self._replayed.x[chosen]))
            total = total + cross_entropy(
                mask_logits(again, self._old),
                self._replayed.y[chosen],
                reduction="sum",
            )
            every = torch.cat([logits, again])
            taught = torch.cat([taught, self._taught_again[chosen]])
        params = self.params
        terms = [
            distillation(every[:, task], taught[:, task], params.temperature)
            for task in self._tasks
        ]
        return total / len(every) + params.strength * torch.stack(terms).sum()


def first_met(state: Payload, teacher: Teacher, task: int, classes: int) -> Array:
    """Return in which task each class was first met, shape (classes,); -1 for none.

    Args:
        state: of the client.
        teacher: which classes there are.
        task: in which the new ones are met.
        classes: of the head.
    """
    none = np.full(classes, -1, np.int64)
    met = np.array(dense(state.get(TASKS, {}).get("first", none)))
    met[teacher.new[met[teacher.new] < 0]] = task
    return met
