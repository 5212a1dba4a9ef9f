"""FedSpace, client side: learn the task's classes beside prototypes of all others.

Shenaj et al., CVPR workshops 2023, https://arxiv.org/abs/2304.03626, with the terms of
the authors' code.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from clients.fedavg import Sgd
from clients.fedspace.contrast import representation_loss
from clients.fedspace.prototypes import measured
from clients.fedspace.turned_head import TURNS, TurnedHead, turned
from clients.lwf.teacher import outputs
from fcl_flower.algorithms.hooks import ReplacesHeads
from fcl_flower.config.params import Params
from fcl_flower.core.errors import refuse
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from fcl_flower.models.multi_head import MultiHeadModel, mask_logits
from fcl_flower.training.tensors import arrays_of, dense, to_numpy, to_torch
from strategies.fedspace import FedSpaceParams
from strategies.fedspace.server import PROTOTYPES

CLASSES = "memory/classes"


class FedSpace(Sgd[FedSpaceParams], ReplacesHeads):
    """Train on a task's images, all their turns, and on what prototypes stand for.

    The loss of a batch is

        CE(z, y) + prototype_weight * CE(z(h~), c~) + representation_weight * R.

    z are the logits of all turns of its images, over the classes that the client has
    met. h~ are as many features as a full batch has examples, ``p_c + radius * noise``
    for classes c, drawn alike, that have a prototype and are not of the task. R is
    `representation_loss` over the upright images and as many features of all classes
    that have a prototype; its anchors are the samples of the task's classes. Classes
    that a growing head does not have yet, which others may have met, count as absent.

    State beside that of `Sgd`: ``memory/classes`` with ``known``, int64, the classes
    that it has met; and ``radius``, as it was measured after the first round with
    examples.
    """

    needs_single_head = True
    for_training = (PROTOTYPES,)

    @override
    @classmethod
    def replace_heads(cls, model: MultiHeadModel, params: Params) -> None:
        given = cast(FedSpaceParams, params)
        shape = model.input_shape
        square = len(shape) == 3 and shape[1] == shape[2]
        if given.rotations and not (square and _is_trained(model.body)):
            expected = "false for inputs other than square images of a trained network"
            raise refuse("strategy.rotations", given.rotations, expected)
        turns = TURNS if given.rotations else 1
        model.heads = nn.ModuleList(
            TurnedHead(model.features, model.classes, turns, given.temperature)
            for _ in model.heads
        )

    @property
    def head(self) -> TurnedHead:
        """Return the classifier."""
        return cast(TurnedHead, self.model.heads[0])

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        context, labels = self.context, data.train.y
        kept = {name: dense(a) for name, a in state.get(CLASSES, {}).items()}
        before = kept.get("known", np.empty(0, np.int64))
        known = np.union1d(before, to_numpy(labels)).astype(np.int64)
        self._know(known, labels, received)
        seed = derive(context.seed, "prototype-samples", context.client, stage.round)
        self._generator = torch.Generator().manual_seed(seed)
        after, update = super().train(state, received, stage, data)
        found = self._measured(data)
        if len(labels):
            kept.setdefault("radius", found["radius"])
        sent = {**found, "radius": kept.get("radius", found["radius"])}
        return {**after, CLASSES: {**kept, "known": known}}, Update(
            {**update.payload, PROTOTYPES: sent}, update.num_examples, update.metrics
        )

    @override
    def shown(self, x: Tensor) -> Tensor:
        return turned(x, self.head.turns) if self.head.turns > 1 else x

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        params, head = self.params, self.head
        answers = mask_logits(head.of_turns(hidden), self._met)
        found = cross_entropy(answers, head.turned_labels(labels))
        if params.prototype_weight and len(self._other):
            features, classes = self._drawn(self._other)
            replayed = cross_entropy(head.of_turns(features), classes * head.turns)
            found = found + params.prototype_weight * replayed
        if params.representation_weight and len(self._held):
            features, classes = self._drawn(self._held)
            found = found + params.representation_weight * representation_loss(
                torch.cat([hidden[:: head.turns], features]),
                torch.cat([labels, classes]),
                self._new,
                params.representation_temperature,
            )
        return found

    def _know(self, known: Array, labels: Tensor, received: Payload) -> None:
        """Note which classes there are, and the prototypes that were received."""
        device = self.context.device
        prototypes = {n: to_torch(a, device) for n, a in received[PROTOTYPES].items()}
        self._means, self._radius = prototypes["means"], prototypes["radius"]
        held, closed = prototypes["held"] > 0, self.head.closed
        self._held = torch.nonzero(held if closed is None else held & ~closed)[:, 0]
        self._new = torch.unique(labels)
        self._other = self._held[~torch.isin(self._held, self._new)]
        self._met = self.head.turned_labels(to_torch(known, device))

    def _drawn(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return features around prototypes of some classes, and their classes.

        Args:
            classes: from which they are drawn alike, int64.
        """
        draw, device = self._generator, self.context.device
        count = self.context.training.batch_size
        at = torch.randint(len(classes), (count,), generator=draw).to(device)
        noise = torch.randn(count, self.model.features, generator=draw).to(device)
        chosen = classes[at]
        return self._means[chosen] + self._radius * noise, chosen

    def _measured(self, data: TaskData) -> dict[str, Array]:
        """Return the prototypes of the task's upright images in the trained model."""
        hidden = torch.empty(0, self.model.features)
        if len(data.train.y):
            hidden = outputs(self.model, data.train).hidden
        return arrays_of(measured(hidden, data.train.y, self.model.classes))


def _is_trained(body: nn.Module) -> bool:
    """Return whether images enter a body as they are, and not as frozen features."""
    return not hasattr(body, "frozen_features")
