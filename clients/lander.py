"""LANDER, client side: features stay near the anchors of their classes.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101, as in the authors' code.
"""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from clients.target import old_samples, synthetic_memory
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.core.types import Payload, Update
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import to_torch
from strategies.lander import LanderParams
from strategies.lander.server import ANCHORS
from strategies.lander.trainer import bounding_loss, projection
from strategies.target.server import SAMPLES


class Lander(LocalTraining[LanderParams]):
    """A learner that minimises CE + ``anchor_weight`` * B, with the bounding loss B.

    From the second task on the loss has two parts. The first is ``current`` * (CE of
    the new classes + ``anchor_weight`` * B). The second is ``previous`` * (KL(old ||
    new) + MSE), on synthetic samples. MSE is the squared error between the old and the
    new model's projected features. See `LanderParams.weights`. Each batch of examples
    is trained with as many synthetic samples.

    The authors' code shifts and mirrors images, and the server's samples too. A run
    here that augments changes only the client's own images. The authors' code also
    lowers the rate over the rounds, and goes on from the round with the least loss.
    That is not done here.

    State beside that of `LocalTraining`: all groups ``memory/...`` as they were
    received.
    """

    temporary_state = (*LocalTraining.temporary_state, "memory")

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        params, model, context = self.params, self.model, self.context
        memory, device = synthetic_memory(turn), context.device
        project = projection(model, turn.received["base"])
        anchors = to_torch(memory[ANCHORS]["anchors"], device)
        size = context.training.batch_size
        old = old_samples(self, turn, lambda samples: min(samples, size))
        features_of_old = torch.empty(0)
        if SAMPLES in memory:
            features_of_old = to_torch(memory[SAMPLES]["features"], device)

        def loss(batch: Batch) -> Tensor:
            distances = project(batch.features), anchors[batch.labels]
            near = bounding_loss(params.radius, *distances)
            if old is None:
                return batch.cross_entropy() + params.anchor_weight * near
            rows, head = next(old.batches), model.heads[0]
            features = model.body(old.x[rows])
            logits = head(features)[:, old.labels]
            kept = softened_kl(logits, old.logits[rows], params.temperature).mean()
            kept = kept + mse_loss(project(features), features_of_old[rows])
            opened = old.close_old(batch.logits)
            new = mean_cross_entropy(opened, batch.labels, batch.weights)
            closed = head.closed
            so_far = model.classes - (
                int(closed.sum()) if isinstance(closed, Tensor) else 0
            )
            current, previous = params.weights(so_far, len(old.labels))
            return current * (new + params.anchor_weight * near) + previous * kept

        state, update = self.fit_locally(turn, loss=loss)
        return {**state, **memory}, update

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        projection(self.model, received["base"])
        return super().predict(state, received, task, x)
