"""Replay, and features that must not move far in a round.

The baseline "regularization + replay" of Huang et al., NAACL 2021,
https://arxiv.org/abs/2104.05489, and of FedET (Liu et al., IJCAI 2023, section 4.1): an
L2 term on the hidden state of the classifier, between the old and the new model. In a
federation the old model is the one that the client received for the round.
"""

import torch
from torch import Tensor
from typing_extensions import override

from clients.fedavg import Sgd
from clients.replay.client import with_buffer, with_replay
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches
from fcl_flower.training.tensors import load
from strategies.replay_reg import ReplayRegParams

CHUNK = 512


class ReplayReg(Sgd[ReplayRegParams]):
    """Add ``strength * mean (h - h_received)^2`` from a client's second task on.

    h is what the body makes of a sample; the mean is over samples and features. State
    as that of `clients.replay.client.Replay`.
    """

    needs_single_head = True

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        seen = with_replay(state, stage, data, self.context)
        self._old: Tensor | None = None
        if stage.task > 0 and len(seen.train.y):
            load(self.model, received["base"])
            self._old = self.hidden(seen.train)
        after, update = super().train(state, received, stage, seen)
        return with_buffer(after, stage, data, self.params.gamma, self.context), update

    @override
    def penalty(self, rows: Tensor, hidden: Tensor) -> Tensor | float:
        if self._old is None:
            return 0.0
        return self.params.strength * (hidden - self._old[rows]).square().mean()

    def hidden(self, examples: Examples) -> Tensor:
        """Return what the body makes of all examples, (N, features), evaluating."""
        self.model.eval()
        with torch.no_grad():
            return torch.cat([self.model.body(x) for x, _ in batches(examples, CHUNK)])
