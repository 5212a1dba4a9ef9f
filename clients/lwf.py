"""LwF: on new samples, the model answers for old classes as the old model does.

Li and Hoiem, ECCV 2016, https://arxiv.org/abs/1606.09282, algorithm 1. This is its form
in class-incremental comparisons (PyCIL, FACIL): one head, and labels train its new
logits alone. As in FedLwF, the old model is the global one.
"""

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.core.types import Payload, Update
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import distillation_loss
from strategies.lwf import LwfParams


class Lwf(LocalTraining[LwfParams]):
    """A learner with the cross-entropy of new classes and distillation of old ones.

    The loss is ``CE(z_new, y) + strength * distillation(z_old, z*_old)``. z are the
    logits of the new classes and of the old ones. z* are the old model's logits for the
    same samples. `distillation_loss` says how it differs from the paper's.

    State beside that of `LocalTraining`: the groups of a `Teacher`.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        params = self.params
        teacher = Teacher.of_turn(turn, self.model, received["base"])
        old, new, _ = teacher.places(self.context.device)
        taught = teacher.outputs(self.model, data.train)

        def loss(batch: Batch) -> Tensor:
            z = batch.logits
            own = mask_logits(z, new) if params.contrast == "new" else z
            entropy = mean_cross_entropy(own, batch.labels, batch.weights)
            if taught is None:
                return entropy
            targets = taught.logits[batch.rows][:, old]
            term = distillation_loss(z[:, old], targets, params.temperature)
            return entropy + params.strength * term

        state, update = self.fit_locally(turn, loss=loss)
        return {**state, **teacher.record(stage)}, update
