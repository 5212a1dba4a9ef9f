"""FOT, client side: plain training, and sketches of what enters the layers.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289. As in their released code
the inputs are those of the network as the client has trained it in its last round.
"""

from collections.abc import Iterator

import numpy as np
import torch
from typing_extensions import override

from clients.fot.layer_inputs import columns, recorded, shared_layers
from clients.fot.sketch import Sketch
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, batches
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import dense, to_numpy
from strategies.fot import FotParams
from strategies.fot.subspace import (
    OUTSIDE,
    SKETCHES,
    SUBSPACE,
    layer_inputs,
    sketch_columns,
)

CHUNK = 64


class Fot(LocalTraining[FotParams]):
    """Minimise the task's loss; in its last round tell what entered the layers."""

    training_only = (SUBSPACE, SKETCHES)

    def __init__(
        self, params: FotParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Find the layers whose updates are projected.

        Raises:
            ConfigError: of a weight it cannot be told what enters its layer.
        """
        super().__init__(params, model, context)
        self._layers = shared_layers(model)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        state, update = super().train(state, received, stage, data)
        if stage.ends_task:
            told = self._sketches(received.get(SUBSPACE, {}), data.train, stage)
            update = Update(
                {**update.payload, **told}, update.num_examples, update.metrics
            )
        return state, update

    def _sketches(self, known: Arrays, examples: Examples, stage: TaskStage) -> Payload:
        """Return what a client tells of the inputs of its layers.

        The random numbers are nobody else's to know: whoever knew them might solve for
        the inputs.
        """
        seed, client = self.context.seed, self.context.client
        rng = secret_generator(seed, "sketch", client, stage.round)
        tensors = self.model.state_dict()
        shared = {name: tensors[name] for name in self.model.shared_names()}
        sketches = {
            name: Sketch(
                dense(known.get(name, np.zeros((count, 0)))),
                sketch_columns(count, self.params.sketch_width),
            )
            for name, count in layer_inputs(shared).items()
        }
        for name, inputs in self._inputs(examples, stage.task):
            sketches[name].add(inputs, rng)
        return {
            SKETCHES: {name: sketch.values for name, sketch in sketches.items()},
            OUTSIDE: {name: sketch.outside for name, sketch in sketches.items()},
        }

    def _inputs(self, examples: Examples, task: int) -> Iterator[tuple[str, Array]]:
        """Yield what enters each layer, shape (inputs, samples), some at a time."""
        model = self.model
        model.eval()
        x = frozen_features(model, examples.x)
        for chunk, _ in batches(Examples(x, examples.y), CHUNK):
            with torch.no_grad(), recorded(self._layers) as seen:
                model(chunk, task)
            for name, layer in self._layers.items():
                found = torch.cat([columns(layer, one) for one in seen[name]], 1)
                yield name, to_numpy(found)
