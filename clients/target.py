"""TARGET, client side: labels teach new classes, the server's samples old ones.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937: the clients' loss.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, P
from fcl_flower.algorithms.exemplars import random_orders
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.data.examples import in_batches
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

    def close_old(self, logits: Tensor) -> Tensor:
        """Close the logits of old classes without examples at this client."""
        return logits.masked_fill(self.closed, CLOSED)


def synthetic_memory(turn: Turn) -> Payload:
    """Select the groups ``memory/...``, which the server sends anew for each task."""
    groups = {**turn.state, **turn.received}
    return {g: groups[g] for g in groups if g.startswith("memory/")}


def old_samples(
    learner: ClientLearner[P], turn: Turn, beside: Callable[[int], int]
) -> OldSamples | None:
    """Prepare the server's samples for a round; None where there is nothing to train.

    ``beside`` is a function from the number of samples to that of the samples beside a
    batch of examples.
    """
    context, samples = learner.context, synthetic_memory(turn).get(SAMPLES)
    y, smallest = turn.data.train.y, context.training.smallest_batch
    count = 0 if samples is None else len(dense(samples["x"]))
    if samples is None or not len(y) or count < smallest:
        return None
    labels = to_torch(samples["labels"], context.device)
    closed = torch.zeros(learner.model.classes, dtype=torch.bool).to(context.device)
    closed[labels] = True
    closed[y] = False
    seed = context.derive("samples", turn.stage.round)
    return OldSamples(
        inputs(learner.model, to_torch(samples["x"], context.device)),
        to_torch(samples["logits"], context.device),
        labels,
        closed,
        _batches(count, max(smallest, beside(count)), smallest, seed),
    )


def _batches(count: int, size: int, smallest: int, seed: int) -> Iterator[Tensor]:
    for order in random_orders(count, seed):
        yield from in_batches(order, size, smallest)


class Target(LocalTraining[TargetParams]):
    """A learner that minimises CE of new classes plus ``alpha`` * KL(old || new).

    The cross-entropy is over the logits of the new classes, and of old ones that come
    back. The divergence is over the logits of old classes. An epoch goes through the
    samples once. The authors' code shifts and mirrors images. Here examples are
    augmented as the run says, and the server's samples stay as they are.

    State beside that of `LocalTraining`: all groups ``memory/...`` as they were
    received.
    """

    temporary_state = (*LocalTraining.temporary_state, "memory")

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        params, model, context = self.params, self.model, self.context
        memory, batch_size = synthetic_memory(turn), context.training.batch_size

        def beside(samples: int) -> int:
            steps = -(-len(turn.data.train.y) // batch_size)
            return -(-samples // steps)

        old = old_samples(self, turn, beside)

        def loss(batch: Batch) -> Tensor:
            if old is None:
                return batch.cross_entropy()
            rows = next(old.batches)
            logits = model(old.x[rows], 0)[:, old.labels]
            kept = softened_kl(logits, old.logits[rows], params.temperature).mean()
            opened = old.close_old(batch.logits)
            new = mean_cross_entropy(opened, batch.labels, batch.weights)
            return new + params.alpha * kept

        state, update = self.fit_locally(turn, loss=loss)
        return {**state, **memory}, update
