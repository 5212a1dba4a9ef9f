"""LANDER, server side: TARGET's, with anchors and a projection to their space.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101. The anchors are made once of
the classes' names, so that only the server needs the text encoder.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Group, Params, ServerContext
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from strategies.fedavg import FedAvg
from strategies.lander import LanderParams
from strategies.target.server import new_samples, with_samples

if TYPE_CHECKING:
    from strategies.lander.trainer import AnchoredTrainer

ANCHORS = "memory/anchors"


class Lander(FedAvg):
    """Keep what TARGET keeps; a client gets the anchors when it starts a task.

    State beside that of TARGET: in ``base`` also the projection
    (``projection.weight`` and ``.bias``); ``memory/anchors``
    (``anchors``, float32, shape (classes, D)).
    """

    # No mean: samples are made of the model after whole rounds.
    groups = {"base": Group(model=True)}
    needs_classes = True
    params: LanderParams

    def __init__(self, params: Params, context: ServerContext) -> None:
        """Make the trainer."""
        super().__init__(params, context)
        self.trainer: AnchoredTrainer = context.trainer()

    @override
    def init(self, model: Arrays) -> Payload:
        names, features = self.context.classes.names, self.context.model.features
        anchors = self.trainer.anchors(names, self.params.encoder)
        bound = 1 / np.sqrt(features)  # as torch initialises a linear layer
        rng = np.random.default_rng(derive(self.context.seed, "projection"))
        shapes = {"weight": (anchors.shape[1], features), "bias": anchors.shape[1]}
        layer = {
            f"projection.{name}": rng.uniform(-bound, bound, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        return {"base": {**model, **layer}, ANCHORS: {"anchors": anchors}}

    @override
    def summands(self, state: Payload) -> Payload:
        return {"base": state["base"]}

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sent = {**self.summands(state), **new_samples(state, stage)}
        return {**sent, ANCHORS: state[ANCHORS]} if stage.starts_task else sent

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        state = super().aggregate_train(state, stage, updates)
        anchors = np.asarray(state[ANCHORS]["anchors"])

        def make(labels: Array) -> Arrays:
            base, number = state["base"], stage.round
            trainer, params = self.trainer, self.params
            return trainer.synthesize_near(base, labels, params, number, anchors)

        return with_samples(state, stage, self.context.classes, make)
