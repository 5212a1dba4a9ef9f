"""DER++: stored samples are trained on again, towards their labels and old logits.

Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211, equation 6, averaged
like any model. In the paper samples come once, and enter the memory when they are seen;
here a task is seen in many rounds, and its samples enter when it ends, with the logits
of the model as the client has trained it then.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.lwf.teacher import outputs
from clients.replay.buffer import replay_samples, without_task
from clients.replay.memory import remember
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.der import DerParams


def logit_error(logits: Tensor, stored: Tensor) -> Tensor:
    """Return the mean squared error over samples and classes, shape ().

    A class that a growing head did not have when a sample was stored has no old logit:
    it does not count.

    Args:
        logits: shape (batch, classes).
        stored: likewise, `CLOSED` where the head was.
    """
    known = stored != CLOSED
    return (logits - stored)[known].square().mean()


class Der(LocalTraining[DerParams]):
    """Minimise ``CE + alpha |z - z_stored|^2 + beta CE_stored``.

    Each of the last two terms is the mean over stored samples of its own, drawn anew in
    each step.

    State beside that of `LocalTraining`: ``memory``, see `clients.replay.memory`, with
    ``logits`` of each sample, float32.
    """

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, memory = self.context, state.get("memory", {})
        device = context.device
        self._stored = replay_samples(memory, device, without=stage.task)
        if len(self._stored.y):
            x = frozen_features(self.model, self._stored.x)
            self._stored = Examples(x, self._stored.y)
            kept = without_task(memory, stage.task)
            self._logits = to_torch(kept["logits"], device)
        seed = derive(context.seed, "replay", context.client, stage.round)
        self._generator = torch.Generator().manual_seed(seed)
        state, update = super().train(state, received, stage, data)
        return {**state, "memory": self._remembered(memory, data.train, stage)}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        found = super().loss(logits, labels, rows, hidden)
        if len(self._stored.y) < self.context.training.smallest_batch:
            return found
        params, model, stored = self.params, self.model, self._stored
        if params.alpha:
            drawn = self._drawn()
            error = logit_error(model(stored.x[drawn], 0), self._logits[drawn])
            found = found + params.alpha * error
        if params.beta:
            drawn = self._drawn()
            again = cross_entropy(model(stored.x[drawn], 0), stored.y[drawn])
            found = found + params.beta * again
        return found

    def _drawn(self) -> Tensor:
        """Return places of different stored samples, as many as a step has."""
        order = torch.randperm(len(self._stored.y), generator=self._generator)
        smallest = self.context.training.smallest_batch
        return order[: max(self.params.replay_batch, smallest)]

    def _remembered(
        self, memory: Arrays, examples: Examples, stage: TaskStage
    ) -> Arrays:
        """Return the memory, with what a task leaves there when it ends."""
        if not stage.ends_task or not len(examples.y):
            return memory
        context, found = self.context, outputs(self.model, examples)
        return remember(
            memory,
            examples,
            self.params,
            # That of other methods, so that the same samples are kept.
            derive(context.seed, "sample-memory", context.client, stage.task),
            task=stage.task,
            features=to_numpy(found.hidden),
            extras={"logits": to_numpy(found.logits)},
        )
