"""LwF: on new samples, the model answers for old classes as the old model does.

Li and Hoiem, ECCV 2016, https://arxiv.org/abs/1606.09282, algorithm 1. This is its form
in class-incremental comparisons (PyCIL, FACIL): one head, and labels train its new
logits alone. As in FedLwF, the old model is the global one.
"""

from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import mask_logits
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import distillation_loss
from strategies.lwf import LwfParams


class Lwf(Rehearsal[LwfParams]):
    """A learner with the cross-entropy of new classes and distillation of old ones.

    The loss is ``CE(z_new, y) + strength * distillation(z_old, z*_old)``. z are the
    logits of the new classes and of the old ones. z* are the old model's logits for the
    same samples. `distillation_loss` says how it differs from the paper's.
    """

    memory_group = None

    @override
    def begin(self, turn: Turn) -> Examples:
        examples = super().begin(turn)
        self._taught = self.ask_teacher(examples)
        return examples

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        params = self.params
        own = mask_logits(logits, self.new) if params.contrast == "new" else logits
        entropy = mean_cross_entropy(own, labels, self.weights)
        if self._taught is None:
            return entropy
        targets = self._taught.logits[rows][:, self.old]
        term = distillation_loss(logits[:, self.old], targets, params.temperature)
        return entropy + params.strength * term
