"""iCaRL: exemplars are trained on again, and predict by the nearest of their means.

Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725: the classifier of equation
2, the loss of algorithm 3, the exemplars of algorithms 4 and 5 (`clients.replay`).
Averaged as FedET's tables do (Liu et al., IJCAI 2023, "iCaRL + FL"): clients share the
network, and nobody else sees an exemplar or a mean.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot
from typing_extensions import override

from clients.lwf.teacher import MODEL, Outputs, Teacher, outputs
from clients.replay.buffer import replay_samples
from clients.replay.memory import remember_task
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData, concat
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.tensors import load, to_torch
from strategies.icarl import IcarlParams


class Icarl(LocalTraining[IcarlParams]):
    """Learn features by a sigmoid for each class, and classify by exemplars.

    State besides: that of `Teacher`, and ``exemplars``, a memory of
    `clients.replay.memory`; predictions need it. New classes have none until their
    task ends.
    """

    temporary = (*LocalTraining.temporary, MODEL)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, exemplars = self.context, state.get("exemplars", {})
        old = replay_samples(exemplars, context.device, without=stage.task)
        train = concat([data.train, old])
        labels = data.train.y
        teacher = Teacher.of_task(state, received, stage, self.model, labels)
        self._known = to_torch(teacher.known, context.device)
        self._teaches = teacher.teaches
        self._taught: Outputs | None = None
        if self.params.distillation and self._teaches and len(train.y):
            self._taught = teacher.outputs(self.model, train)
        # A class that comes again is told by its labels.
        only_old = to_torch(teacher.old, context.device)
        self._distilled = only_old[~torch.isin(only_old, labels)]
        seen = TaskData(train, data.valid, data.test, data.classes)
        after, update = super().train(state, received, stage, seen)
        params, model = self.params, self.model
        kept = remember_task(exemplars, data.train, params, model, context, stage)
        return {**after, **teacher.kept(stage), "exemplars": kept}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        """Return the loss of algorithm 3, over the classes so far; a batch's mean.

        A sum over classes as printed; the authors' code takes their mean, at a rate
        of 2.
        """
        targets = one_hot(labels, logits.shape[1]).float()
        if self._taught is not None:
            old = self._distilled
            targets[:, old] = torch.sigmoid(self._taught.logits[rows][:, old])
        known = self._known
        total = binary_cross_entropy_with_logits(
            logits[:, known], targets[:, known], reduction="sum"
        )
        return total / len(labels)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Return minus the distances to the means of the exemplars, or the logits.

        Features, and the means of those, have length 1 (section 2.1); so the nearest
        mean is the nearest in angle. A class without an exemplar has the logit
        `CLOSED`.
        """
        load(self.model, received["base"])
        self.model.eval()
        hidden = self.classified(state, self.model.body(x))
        if self.params.classifier == "head":
            by_head: Tensor = self.model.heads[0](hidden)
            return by_head
        features = normalize(hidden)
        logits = torch.full((len(x), self.model.classes), CLOSED, device=x.device)
        exemplars = replay_samples(state.get("exemplars", {}), self.context.device)
        if not len(exemplars.y):
            return logits
        known = normalize(outputs(self.model, exemplars).hidden)
        for label in torch.unique(exemplars.y).tolist():
            mean = normalize(known[exemplars.y == label].mean(0), dim=0)
            logits[:, label] = -torch.linalg.vector_norm(features - mean, dim=1)
        return logits

    def classified(self, state: Payload, hidden: Tensor) -> Tensor:
        """Return what of features is classified: all.

        Args:
            state: of the client.
            hidden: of the body, shape (batch, features).
        """
        return hidden
