"""DER++: training replays stored samples, towards their labels and their old logits.

Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211, equation 6, averaged
like any model. In the paper samples come once, and enter the memory at once. Here a
task is seen in many rounds. Its samples enter the memory at its end, with the logits of
the client's trained model.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import training_inputs
from fcl_flower.algorithms.exemplars import remember_task, without_task
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.distillation import outputs
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.der import DerParams

STORED = "augment-stored"


class Der(Rehearsal[DerParams]):
    """A learner that minimises ``CE + alpha |z - z_stored|^2 + beta CE_stored``.

    Each of the last two terms is a mean over stored samples of its own, drawn anew in
    each step.

    State: the memory also has the ``logits`` of each sample, float32.
    """

    has_teacher = False

    @override
    def mixed(self, turn: Turn) -> Examples:
        return turn.data.train

    @override
    def begin(self, turn: Turn) -> Examples:
        examples, context = super().begin(turn), self.context
        self._stored = self.replayed
        if len(self._stored.y):
            self._inputs = training_inputs(
                *(self.model, self._stored.x, context, turn.stage.round, STORED)
            )
            stored = without_task(self.memory(turn), turn.stage.task)
            self._logits = to_torch(stored["logits"], context.device)
        seed = derive(context.seed, "replay", context.client, turn.stage.round)
        self._generator = torch.Generator().manual_seed(seed)
        return examples

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        total = super().loss(logits, labels, rows, hidden)
        if len(self._stored.y) < self.context.training.smallest_batch:
            return total
        params, model, stored = self.params, self.model, self._stored
        if params.alpha:
            drawn = self._drawn()
            error = logit_error(model(self._again(drawn), 0), self._logits[drawn])
            total = total + params.alpha * error
        if params.beta:
            drawn = self._drawn()
            again = cross_entropy(model(self._again(drawn), 0), stored.y[drawn])
            total = total + params.beta * again
        return total

    @override
    def remember(self, turn: Turn) -> Arrays:
        examples, extras = turn.data.train, dict[str, Array]()
        if turn.stage.ends_task and len(examples.y):
            extras["logits"] = to_numpy(outputs(self.model, examples).logits)
        where = self.params, self.model, self.context, turn.stage
        return remember_task(self.memory(turn), examples, *where, extras)

    def _again(self, drawn: Tensor) -> Tensor:
        return self._inputs.see(self._inputs.x[drawn])

    def _drawn(self) -> Tensor:
        order = torch.randperm(len(self._stored.y), generator=self._generator)
        smallest = self.context.training.smallest_batch
        return order[: max(self.params.replay_batch, smallest)]


def logit_error(logits: Tensor, stored: Tensor) -> Tensor:
    """Compute the mean squared error over samples and classes.

    If a growing head did not have a class then, its stored logit is `CLOSED`, and it
    does not count.
    """
    present = stored != CLOSED
    return (logits - stored)[present].square().mean()
