"""iCaRL: training replays exemplars, and the nearest of their means predicts.

Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725: the classifier of equation
2, the loss of algorithm 3, the exemplars of algorithms 4 and 5 (`exemplars`). The
average is that of FedET's tables (Liu et al., IJCAI 2023, "iCaRL + FL"). Clients share
the network. Exemplars and means never leave a client.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, one_hot
from typing_extensions import override

from fcl_flower.algorithms.exemplars import remember_task, replay_samples
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.distillation import Outputs, hidden_features
from fcl_flower.training.tensors import load
from strategies.icarl import IcarlParams

C = TypeVar("C", bound=IcarlParams)


class Icarl(LocalTraining[C]):
    """A learner of features by sigmoids for classes, which classifies by exemplars.

    State beside that of `LocalTraining`: the groups of a `Teacher`, and the memory
    ``exemplars``, which predictions need. A new class has no exemplars until its task
    ends.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        memory = state.get("exemplars", {})
        params, model, context = self.params, self.model, self.context
        replayed = replay_samples(memory, context.device, without=stage.task)
        examples = concat([data.train, replayed])
        teacher = Teacher.of_turn(turn, model, received["base"])
        taught = teacher.outputs(model, examples) if params.distillation else None
        state, update = self.fit_icarl(turn, examples, teacher, taught)
        memory = remember_task(self, turn, memory)
        return {**state, **teacher.record(stage), "exemplars": memory}, update

    def fit_icarl(
        self, turn: Turn, examples: Examples, teacher: Teacher, taught: Outputs | None
    ) -> tuple[Payload, Update]:
        """Train by `icarl_loss`; ``taught`` are the teacher's outputs, if any."""
        old, _, known = teacher.places(self.context.device)
        # A class that comes again learns from its labels.
        distilled = old[~torch.isin(old, turn.data.train.y)]

        def loss(batch: Batch) -> Tensor:
            answers = None if taught is None else taught.logits[batch.rows]
            return icarl_loss(batch, known, distilled, answers)

        return self.fit_locally(turn, examples, loss=loss)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute minus the distances to the means of exemplars, or the head's logits.

        Features and their means have length 1 (section 2.1). So the nearest mean is
        also the nearest in angle. A class without an exemplar has the logit `CLOSED`.
        """
        load(self.model, received["base"])
        self.model.eval()
        hidden = self.project_features(state, self.model.body(x))
        if self.params.classifier == "head":
            by_head: Tensor = self.model.heads[0](hidden)
            return by_head
        nearest = NearestMean(self._means(state), self.model.classes)
        logits: Tensor = nearest(hidden)
        return logits

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        load(self.model, received["base"])
        # `project_features` is linear, so its values at the identity are its matrix.
        kept = self.project_features(state, torch.eye(self.model.features))
        network = self.model.network(task)
        if self.params.classifier == "head":
            return nn.Sequential(network.body, Projection(kept), network.head)
        nearest = NearestMean(self._means(state), self.model.classes)
        return nn.Sequential(network.body, Projection(kept), nearest)

    def _means(self, state: Payload) -> dict[int, Tensor]:
        """Compute the mean direction of each class that has exemplars, (features,)."""
        exemplars = replay_samples(state.get("exemplars", {}), self.context.device)
        if not len(exemplars.y):
            return {}
        directions = normalize(hidden_features(self.model, exemplars))
        return {
            label: normalize(directions[exemplars.y == label].mean(0), dim=0)
            for label in torch.unique(exemplars.y).tolist()
        }

    def project_features(self, state: Payload, hidden: Tensor) -> Tensor:
        """Choose the part of features (batch, features) to classify: here all."""
        return hidden


def icarl_loss(
    batch: Batch, known: Tensor, distilled: Tensor, answers: Tensor | None
) -> Tensor:
    """Compute algorithm 3's loss: a sum over classes so far, a mean over samples.

    The authors' code has a mean over classes too, at a rate of 2.

    Args:
        batch: the batch and its logits.
        known: the classes so far, int64.
        distilled: the classes whose targets are the teacher's answers, int64.
        answers: the teacher's logits, shape (batch, classes); None for no teacher.
    """
    labels, logits = batch.labels, batch.logits
    targets = one_hot(labels, logits.shape[1]).float()
    if answers is not None:
        targets[:, distilled] = torch.sigmoid(answers[:, distilled])
    weights = None if batch.weights is None else batch.weights[labels][:, None]
    total = binary_cross_entropy_with_logits(
        logits[:, known], targets[:, known], weights, reduction="sum"
    )
    return total / len(labels)


class Projection(nn.Module):
    """The product of features and a matrix, (features, features)."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.matrix: Tensor

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class NearestMean(nn.Module):
    """A classifier: minus the distances of features' directions to class means."""

    def __init__(self, means: Mapping[int, Tensor], classes: int) -> None:
        """Take the mean direction of some of the classes, by class number."""
        super().__init__()
        self._known, self._classes = [*means], classes
        for label, mean in means.items():
            self.register_buffer(f"mean_{label}", mean)

    @override
    def forward(self, x: Tensor) -> Tensor:
        features = normalize(x)
        closed = torch.full_like(features[:, 0], CLOSED)
        distances = {
            label: -torch.linalg.vector_norm(
                features - self.get_buffer(f"mean_{label}"), dim=1
            )
            for label in self._known
        }
        columns = [distances.get(label, closed) for label in range(self._classes)]
        return torch.stack(columns, 1)
