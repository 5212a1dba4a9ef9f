"""TARGET, client side: labels teach new classes, the server's samples old ones.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937: the clients' loss.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.base import P
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples, in_batches
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import dense, to_torch
from strategies.target import TargetParams
from strategies.target.server import SAMPLES
from strategies.target.trainer import inputs


class OldSamples(NamedTuple):
    """The server's synthetic samples, as a round of training takes them.

    Attributes:
        x: inputs of the model, shape (N, C, H, W).
        logits: the old model's answers, shape (N, old classes).
        labels: int64, places of these logits in the head.
        closed: bool, (classes,): old classes without examples at this client.
        batches: rows of batches, without end.
    """

    x: Tensor
    logits: Tensor
    labels: Tensor
    closed: Tensor
    batches: Iterator[Tensor]


class SyntheticRehearsal(LocalTraining[P]):
    """A learner that trains beside the server's synthetic samples of old classes.

    State beside that of `LocalTraining`: all groups ``memory/...`` as they were
    received.

    Attributes:
        memory: these groups.
        old: the samples; None where there is nothing to train.
    """

    # The server sends the memory anew for each task.
    temporary_state = (*LocalTraining.temporary_state, "memory")
    training_only = ("memory",)
    memory: Payload
    old: OldSamples | None

    @override
    def begin(self, turn: Turn) -> Examples:
        groups = {**turn.state, **turn.received}
        self.memory = {g: groups[g] for g in groups if g.startswith("memory/")}
        self.old = self._old_samples(turn)
        return super().begin(turn)

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        return {**state, **self.memory}, update

    @abstractmethod
    def beside(self, samples: int, examples: int) -> int:
        """Choose the number of synthetic samples beside a batch of examples."""

    def _old_samples(self, turn: Turn) -> OldSamples | None:
        context, y = self.context, turn.data.train.y
        kept, smallest = self.memory.get(SAMPLES), context.training.smallest_batch
        count = 0 if kept is None else len(dense(kept["x"]))
        if kept is None or not len(y) or count < smallest:
            return None
        labels = to_torch(kept["labels"], context.device)
        closed = torch.zeros(self.model.classes, dtype=torch.bool).to(context.device)
        closed[labels] = True
        closed[y] = False
        size = max(smallest, self.beside(count, len(y)))
        seed = derive(context.seed, "samples", context.client, turn.stage.round)
        return OldSamples(
            inputs(self.model, to_torch(kept["x"], context.device)),
            to_torch(kept["logits"], context.device),
            labels,
            closed,
            _batches(count, size, smallest, seed),
        )


def _batches(count: int, size: int, smallest: int, seed: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=draw)
        yield from in_batches(order, size, smallest)


class Target(SyntheticRehearsal[TargetParams]):
    """A learner that minimises CE of new classes plus ``alpha`` * KL(old || new).

    The cross-entropy is over the logits of the new classes, and of old ones that come
    back. The divergence is over the logits of old classes. An epoch goes through the
    samples once. The authors' code shifts and mirrors images. Here examples are
    augmented as the run says, and the server's samples stay as they are.
    """

    @override
    def beside(self, samples: int, examples: int) -> int:
        steps = -(-examples // self.context.training.batch_size)
        return -(-samples // steps)

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        old, params = self.old, self.params
        if old is None:
            return super().loss(logits, labels, rows, hidden)
        chosen = next(old.batches)
        logits_of_old = self.model(old.x[chosen], 0)[:, old.labels]
        kept = softened_kl(logits_of_old, old.logits[chosen], params.temperature).mean()
        opened = logits.masked_fill(old.closed, CLOSED)
        new = mean_cross_entropy(opened, labels, self.weights)
        return new + params.alpha * kept
