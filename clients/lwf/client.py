"""LwF: on new samples, answer for old classes as the old model does.

Li and Hoiem, ECCV 2016, https://arxiv.org/abs/1606.09282, algorithm 1, as class-
incremental comparisons use it (PyCIL, FACIL: one head, whose new logits alone are
trained by labels) and as FedLwF federates it: the old model is the global one.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.lwf.teacher import MODEL, Outputs, Teacher, distillation
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.tensors import to_torch
from strategies.lwf import LwfParams


class Lwf(LocalTraining[LwfParams]):
    """Minimise ``CE(z_new, y) + strength * distillation(z_old, z*_old)``.

    z are the logits of the new classes and of the old ones, z* those of the old model
    for the same samples; `distillation` says how it differs from the paper's.

    State beside that of `LocalTraining`: that of `Teacher`.
    """

    temporary = (*LocalTraining.temporary, MODEL)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        labels = data.train.y
        teacher = Teacher.of_task(state, received, stage, self.model, labels)
        self._taught: Outputs | None = None
        if teacher.teaches and len(labels):
            self._taught = teacher.outputs(self.model, data.train)
        device = self.context.device
        self._old, self._new = (to_torch(a, device) for a in (teacher.old, teacher.new))
        after, update = super().train(state, received, stage, data)
        return {**after, **teacher.kept(stage)}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        own = (
            mask_logits(logits, self._new) if self.params.contrast == "new" else logits
        )
        found = cross_entropy(own, labels)
        if self._taught is None:
            return found
        targets = self._taught.logits[rows][:, self._old]
        params = self.params
        term = distillation(logits[:, self._old], targets, params.temperature)
        return found + params.strength * term
