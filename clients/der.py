"""DER++: training replays stored samples, towards their labels and their old logits.

Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211, equation 6, averaged
like any model. In the paper samples come once, and enter the memory at once. Here a
task is seen in many rounds. Its samples enter the memory at its end, with the logits of
the client's trained model.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.augmentation import training_inputs
from fcl_flower.algorithms.exemplars import (
    random_orders,
    remember_task,
    replay_samples,
    without_task,
)
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.core.types import Array, Payload, Update
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.distillation import outputs
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.der import DerParams

STORED = "augment-stored"


class Der(LocalTraining[DerParams]):
    """A learner that minimises ``CE + alpha |z - z_stored|^2 + beta CE_stored``.

    Each of the last two terms is a mean over stored samples of its own, drawn anew in
    each step.

    State beside that of `LocalTraining`: ``memory``, which also has the ``logits`` of
    each sample, float32.
    """

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
        memory = state.get("memory", {})
        params, model, context = self.params, self.model, self.context
        stored = replay_samples(memory, context.device, without=stage.task)
        smallest = context.training.smallest_batch
        replays = len(stored.y) >= smallest
        if replays:
            inputs = training_inputs(model, stored.x, context, stage.round, STORED)
            rows = without_task(memory, stage.task)
            targets = to_torch(rows["logits"], context.device)
        seed = context.derive("replay", stage.round)
        orders = random_orders(len(stored.y), seed)
        size = max(params.replay_batch, smallest)

        def loss(batch: Batch) -> Tensor:
            total = batch.cross_entropy()
            if replays and params.alpha:
                drawn = next(orders)[:size]
                error = logit_error(model(inputs.at(drawn), 0), targets[drawn])
                total = total + params.alpha * error
            if replays and params.beta:
                drawn = next(orders)[:size]
                again = cross_entropy(model(inputs.at(drawn), 0), stored.y[drawn])
                total = total + params.beta * again
            return total

        state, update = self.fit_locally(turn, loss=loss)
        extras = dict[str, Array]()
        if stage.ends_task and len(data.train.y):
            extras["logits"] = to_numpy(outputs(model, data.train).logits)
        return {**state, "memory": remember_task(self, turn, memory, extras)}, update


def logit_error(logits: Tensor, stored: Tensor) -> Tensor:
    """Compute the mean squared error over samples and classes.

    If a growing head did not have a class then, its stored logit is `CLOSED`, and it
    does not count.
    """
    present = stored != CLOSED
    return (logits - stored)[present].square().mean()
