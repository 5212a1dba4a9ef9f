"""LANDER, client side: features stay near the anchors of their classes.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101, as in the authors' code.
"""

from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from clients.target import SyntheticRehearsal
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.core.types import Payload
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import CLOSED
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.distillation import softened_kl
from fcl_flower.training.tensors import to_torch
from strategies.lander import LanderParams
from strategies.lander.server import ANCHORS
from strategies.lander.trainer import bounding_loss, projection
from strategies.target.server import SAMPLES


class Lander(SyntheticRehearsal[LanderParams]):
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
    """

    @override
    def begin(self, turn: Turn) -> Examples:
        self._project = projection(self.model, turn.received["base"])
        examples, device = super().begin(turn), self.context.device
        self._anchors = to_torch(self.memory[ANCHORS]["anchors"], device)
        if SAMPLES in self.memory:
            self._features = to_torch(self.memory[SAMPLES]["features"], device)
        return examples

    @override
    def beside(self, samples: int, examples: int) -> int:
        return min(samples, self.context.training.batch_size)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        projection(self.model, received["base"])
        return super().predict(state, received, task, x)

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        old, params, project = self.old, self.params, self._project
        near = bounding_loss(params.radius, project(hidden), self._anchors[labels])
        if old is None:
            entropy = mean_cross_entropy(logits, labels, self.weights)
            return entropy + params.anchor_weight * near
        chosen = next(old.batches)
        head, features = self.model.heads[0], self.model.body(old.x[chosen])
        logits_of_old = head(features)[:, old.labels]
        kept = softened_kl(logits_of_old, old.logits[chosen], params.temperature).mean()
        kept = kept + mse_loss(project(features), self._features[chosen])
        opened = logits.masked_fill(old.closed, CLOSED)
        new = mean_cross_entropy(opened, labels, self.weights)
        closed = head.closed
        so_far = self.model.classes - (
            int(closed.sum()) if isinstance(closed, Tensor) else 0
        )
        current, previous = params.weights(so_far, len(old.labels))
        return current * (new + params.anchor_weight * near) + previous * kept
