"""Samples near the anchors of their classes: LANDER's generator and its student.

Tran et al., CVPR 2024, as in the authors' code. What `synthesis` says of TARGET's code
holds for this one, too, but that it trains the generator itself; besides, it learns the
mean and the variance by which images are standardized, which are known here.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from typing_extensions import override

from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.synthesis.anchors import (
    AnchoredGenerator,
    name_anchors,
    projection,
)
from fcl_flower.training.synthesis.losses import beyond
from fcl_flower.training.synthesis.params import AnchorParams
from fcl_flower.training.synthesis.synthesis import Synthesis
from fcl_flower.training.synthesis.trainer import SampleTrainer, inputs
from fcl_flower.training.tensors import load, to_numpy, to_torch

_CHUNK = 256


class AnchoredSynthesis(Synthesis):
    """Images whose features, projected, lie near the anchors of their classes."""

    def __init__(
        self,
        teacher: MultiHeadModel,
        student: MultiHeadModel,
        labels: Tensor,
        params: AnchorParams,
        training: Training,
        seed: int,
        anchors: Tensor,
    ) -> None:
        """Make a generator; see `Synthesis`.

        Args:
            teacher: with a projection, as `projection` makes it.
            student: likewise.
            labels: of C classes.
            params: sizes and weights.
            training: of the student.
            seed: of everything that is drawn.
            anchors: those of the labels, shape (C, D).
        """
        self._near, self._anchors = params, anchors
        super().__init__(teacher, student, labels, params, training, seed)

    @override
    def _new_generator(self) -> nn.Module:
        near = self._near
        self._anchored = AnchoredGenerator(
            self._anchors.shape[1],
            near.synthetic_batch,
            near.generator_noise,
            near.generator_width,
            self.teacher.input_shape,
        )
        return self._anchored

    @override
    def _entering(self, wanted: Tensor, draw: torch.Generator) -> Tensor:
        self._anchored.redraw(draw)
        return self._anchors[wanted]

    @override
    def _of_features(self, features: Tensor, wanted: Tensor) -> Tensor | float:
        projected = projection(self.teacher, {})(features)
        anchors = self._anchors[wanted]
        return self._near.anchor_weight * beyond(self._near.radius, projected, anchors)

    @override
    def _lesson(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor | float]:
        targets, layer = projected(self.teacher, x), projection(self.student, {})

        def lesson(features: Tensor, rows: Tensor) -> Tensor:
            return self._near.anchor_weight * mse_loss(layer(features), targets[rows])

        return lesson


class AnchoredTrainer(SampleTrainer):
    """Makes anchors of names, and images near them."""

    def anchors(self, names: tuple[str, ...], encoder: str) -> Array:
        """Return where an encoder puts the names of classes, see `name_anchors`."""
        return name_anchors(names, encoder)

    def synthesize_near(
        self,
        tensors: Arrays,
        labels: Array,
        params: AnchorParams,
        number: int,
        anchors: Array,
    ) -> dict[str, Array]:
        """Return samples near anchors; see `SampleTrainer.synthesize`.

        Args:
            tensors: the model's, with those of the projection.
            labels: of C classes.
            params: sizes and weights.
            number: of the call.
            anchors: of all classes, shape (classes, D).

        Returns:
            besides: ``features``, what the model makes of the samples in the space of
            the anchors, float32, shape (N, D).
        """
        for network in (self.model, self._student):
            projection(network, tensors)
        device = str(next(self.model.parameters()).device)
        wanted = to_torch(anchors[labels], device)
        found = self._samples(
            tensors,
            labels,
            lambda teacher, student, here: AnchoredSynthesis(
                *(teacher, student, here, params, self.training),
                derive(self.seed, "synthesis", number),
                wanted,
            ),
        )
        load(self.model, tensors)
        pixels = to_torch(found["x"], device)
        return {**found, "features": to_numpy(projected(self.model, inputs(pixels)))}


@torch.no_grad()
def projected(model: MultiHeadModel, x: Tensor) -> Tensor:
    """Return what a model makes of inputs in the space of the anchors, (N, D)."""
    layer = projection(model.eval(), {})
    parts = [x[at : at + _CHUNK] for at in range(0, len(x), _CHUNK)]
    return torch.cat([layer(model.body(part)) for part in parts])
