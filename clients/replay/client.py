"""Replay: a few samples of each old task are trained on again with every new one.

De Masson d'Autume et al., NeurIPS 2019, https://arxiv.org/abs/1906.01076, as FedET
(Liu et al., IJCAI 2023, section 4.1) federates it: every client keeps a fraction gamma
of its samples; or, with ``budget`` fixed, a number of them in all. With ``strength``
above 0 it is the baseline "regularization + replay" of Huang et al., NAACL 2021,
https://arxiv.org/abs/2104.05489: an L2 term on the hidden state of the classifier,
between the old and the new model. In a federation the old model is the one that the
client received for the round.
"""

import torch
from torch import Tensor
from typing_extensions import override

from clients.replay.buffer import add_to_buffer, replay_samples
from clients.replay.memory import remember_task
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches, concat
from fcl_flower.training.tensors import load
from strategies.replay import ReplayParams

CHUNK = 512


class Replay(LocalTraining[ReplayParams]):
    """Minimise the loss over the task's samples and those of the buffer together.

    From a client's second task on ``strength * mean (h - h_received)^2`` is added,
    where h is the body's output for a sample; the mean is over samples and features.

    State beside that of `LocalTraining`: ``memory``, see `clients.replay.buffer`.
    """

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context = self.context
        buffer = state.get("memory", {})
        old = replay_samples(buffer, context.device, without=stage.task)
        train = concat([data.train, old])
        self._received: Tensor | None = None
        if self.params.strength > 0 and stage.task > 0 and len(train.y):
            load(self.model, received["base"])
            self._received = self.hidden(train)
        seen = TaskData(train, data.valid, data.test, data.classes)
        after, update = super().train(state, received, stage, seen)
        params, examples = self.params, data.train
        if params.budget == "fixed":
            buffer = remember_task(buffer, examples, params, self.model, context, stage)
        else:
            # A task counts once: its samples stay the same over rounds, also where its
            # first round was repeated, or the client did not take part in it.
            seed = derive(context.seed, "sample-memory", context.client, stage.task)
            share = params.buffer_fraction
            buffer = add_to_buffer(buffer, examples, share, seed, task=stage.task)
        return {**after, "memory": buffer}, update

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        if self._received is None:
            return 0.0
        return self.params.strength * (hidden - self._received[rows]).square().mean()

    def hidden(self, examples: Examples) -> Tensor:
        """Return the body's output for all examples, (N, features), evaluating."""
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model.body(x) for x, _ in batches(examples, CHUNK)])
