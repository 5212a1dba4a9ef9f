"""TARGET, client side: new classes by their labels, old ones by the server's samples.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937: the clients' loss.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import Examples, in_batches
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import dense, to_torch
from strategies.target import TargetParams
from strategies.target.server import SAMPLES
from strategies.target.trainer import inputs


class Target(LocalTraining[TargetParams]):
    """Minimise CE of the new classes plus ``alpha`` * KL(old || new) on the samples.

    The cross-entropy is over the logits of the new classes alone, and of old ones that
    come back; the divergence over those of the old ones. An epoch goes through the
    samples once. The authors' code shifts and mirrors images, which is not done here.

    State besides: ``memory/samples``, as they were received.
    """

    temporary_state = (
        *LocalTraining.temporary_state,
        "memory",
    )  # sent anew for each task
    training_only = ("memory",)

    @override
    def begin(self, turn: Turn) -> Examples:
        examples, context = super().begin(turn), self.context
        steps = -(-len(examples.y) // context.training.batch_size)
        self._old = old_samples(
            turn, self.model.classes, context, lambda count: -(-count // steps)
        )
        return examples

    @override
    def finish(
        self, turn: Turn, state: Payload, update: Update
    ) -> tuple[Payload, Update]:
        return {**state, **kept_samples(turn)}, update

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        old, params = self._old, self.params
        if old is None:
            return super().loss(logits, labels, rows, hidden)
        chosen = next(old.batches)
        found = self.model(old.x[chosen], 0)[:, old.labels]
        kept = softened_kl(found, old.logits[chosen], params.temperature).mean()
        new = cross_entropy(logits.masked_fill(old.closed, CLOSED), labels)
        return new + params.alpha * kept


class OldSamples(NamedTuple):
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


def kept_samples(turn: Turn) -> Payload:
    """Find the server's samples: those received, or kept from an earlier round."""
    known = {**turn.state, **turn.received}
    return {SAMPLES: known[SAMPLES]} if SAMPLES in known else {}


def old_samples(
    turn: Turn, classes: int, context: ClientContext, size: Callable[[int], int]
) -> OldSamples | None:
    """Prepare the server's samples for a round; None where there is nothing to train.

    ``size`` says of their number how many stand beside a batch of examples.
    """
    kept, y = kept_samples(turn).get(SAMPLES), turn.data.train.y
    count = 0 if kept is None else len(dense(kept["x"]))
    smallest = context.training.smallest_batch
    if kept is None or not len(y) or count < smallest:
        return None
    labels = to_torch(kept["labels"], context.device)
    closed = torch.zeros(classes, dtype=torch.bool, device=context.device)
    closed[labels] = True
    closed[y] = False
    seed = derive(context.seed, "samples", context.client, turn.stage.round)
    return OldSamples(
        inputs(to_torch(kept["x"], context.device)),
        to_torch(kept["logits"], context.device),
        labels,
        closed,
        _batches(count, max(smallest, size(count)), smallest, seed),
    )


def _batches(count: int, size: int, smallest: int, seed: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=draw)
        yield from in_batches(order, size, smallest)
