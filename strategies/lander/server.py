"""LANDER, server side: TARGET's, with anchors and a projection to their space.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101. The anchors are computed once
from the classes' names, so that only the server needs the text encoder.
"""

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.core.types import Array, Arrays, Payload, TaskStage
from strategies.lander import LanderParams
from strategies.target.server import Target

if TYPE_CHECKING:
    from strategies.lander.trainer import AnchoredTrainer

ANCHORS = "memory/anchors"


class Lander(Target):
    """A strategy with TARGET's state, which also sends clients the anchors.

    State beside that of TARGET: ``base`` also has the projection (``projection.weight``
    and ``.bias``); ``memory/anchors`` has ``anchors``, float32, shape (classes, D).
    """

    params: LanderParams
    trainer: "AnchoredTrainer"

    @override
    def init(self, model: Arrays) -> Payload:
        names, features = self.context.classes.names, self.context.model.features
        anchors = self.trainer.anchors(names, self.params.encoder)
        bound = 1 / np.sqrt(features)  # as torch initialises a linear layer
        rng = np.random.default_rng(self.context.derive("projection"))
        shapes = {"weight": (anchors.shape[1], features), "bias": anchors.shape[1]}
        layer = {
            f"projection.{name}": rng.uniform(-bound, bound, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        return {"base": {**model, **layer}, ANCHORS: {"anchors": anchors}}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sent = super().send(state, stage, client)
        return {**sent, ANCHORS: state[ANCHORS]} if stage.starts_task else sent

    @override
    def synthesize(self, state: Payload, labels: Array, number: int) -> Arrays:
        anchors = np.asarray(state[ANCHORS]["anchors"])
        base, params = state["base"], self.params
        return self.trainer.synthesize_near(base, labels, params, number, anchors)
