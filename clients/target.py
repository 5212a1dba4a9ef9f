"""TARGET, client side: new classes by their labels, old ones by the server's samples.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937: the clients' loss.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.base import P
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData, in_batches
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import dense, to_torch
from strategies.target import TargetParams
from strategies.target.server import SAMPLES
from strategies.target.trainer import inputs


class Old(NamedTuple):
    """The server's samples, as a round of training takes them.

    Attributes:
        x: as the model takes them, shape (N, C, H, W).
        logits: what the old model says of them, shape (N, old classes).
        labels: int64, places of these logits in the head.
        closed: bool, (classes,): those that the client has no examples of.
        batches: rows, without end.
    """

    x: Tensor
    logits: Tensor
    labels: Tensor
    closed: Tensor
    batches: Iterator[Tensor]


class Distilling(LocalTraining[P]):
    """Keep the server's samples, and train with them what `loss` says.

    State beside that of `LocalTraining`: ``memory/samples``, as they were received.
    """

    temporary = (
        *LocalTraining.temporary,
        "memory",
    )  # the server sends it for each task
    for_training = ("memory",)
    old: Old | None = None

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        kept = {**state, **received}.get(SAMPLES)
        self.old = None
        smallest = self.context.training.smallest_batch
        count = 0 if kept is None else len(dense(kept["x"]))
        if kept is not None and len(data.train.y) and count >= smallest:
            device, classes = self.context.device, self.model.classes
            labels = to_torch(kept["labels"], device)
            closed = torch.zeros(classes, dtype=torch.bool, device=device)
            closed[labels] = True
            closed[data.train.y] = False
            self.old = Old(
                inputs(to_torch(kept["x"], device)),
                to_torch(kept["logits"], device),
                labels,
                closed,
                self._batches(count, len(data.train.y), stage.round),
            )
        after, update = super().train(state, received, stage, data)
        return after if kept is None else {**after, SAMPLES: kept}, update

    def batch_size(self, count: int, examples: int) -> int:
        """Return the samples beside a batch of examples: an epoch takes each once.

        Args:
            count: of samples.
            examples: of the client.
        """
        steps = -(-examples // self.context.training.batch_size)
        return -(-count // steps)

    def _batches(self, count: int, examples: int, number: int) -> Iterator[Tensor]:
        """Yield rows of samples.

        Args:
            count: of samples.
            examples: of the client.
            number: of the round.
        """
        context = self.context
        smallest = context.training.smallest_batch
        size = max(smallest, self.batch_size(count, examples))
        seed = derive(context.seed, "samples", context.client, number)
        draw = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(count, generator=draw)
            yield from in_batches(order, size, smallest)


class Target(Distilling[TargetParams]):
    """Minimise CE of the new classes plus ``alpha`` * KL(old || new) on the samples.

    The cross-entropy is over the logits of the new classes alone, and of old ones that
    come back; the divergence over those of the old ones. An epoch goes through the
    samples once. The authors' code shifts and mirrors images, which is not done here.
    """

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        old, params = self.old, self.params
        if old is None:
            return super().loss(logits, labels, rows, hidden)
        chosen = next(old.batches)
        found = self.model(old.x[chosen], 0)[:, old.labels]
        kept = softened_kl(found, old.logits[chosen], params.temperature).mean()
        new = cross_entropy(logits.masked_fill(old.closed, CLOSED), labels)
        return new + params.alpha * kept
