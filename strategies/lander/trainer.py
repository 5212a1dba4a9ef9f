"""LANDER's generator and its student: samples near the anchors of their classes.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101, as in the authors' code.
`strategies.target.trainer` lists differences from TARGET's code. They also hold for
this code, except that it trains the generator itself. It also learns the mean and the
variance by which images are standardized, which are known here.

An anchor is a text encoder's embedding of the name of a class. The authors' repository
has files of anchors for three data sets. Here an encoder computes them for any names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.texts import encoder_tokenizer
from fcl_flower.models.build import seeded
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.training.tensors import load, to_numpy, to_torch
from strategies.lander import LanderParams
from strategies.target.trainer import ImageGenerator, SampleTrainer, Synthesis, inputs

GROUP = 10
"""The number of samples that enter through one random layer, as in the authors'
code."""
_TOKENS = 12
_CHUNK = 256


class AnchoredTrainer(SampleTrainer):
    """A trainer that computes anchors of names, and images near them."""

    def anchors(self, names: tuple[str, ...], encoder: str) -> Array:
        """Compute anchors of classes; a method, so that a server needs no torch."""
        return name_anchors(names, encoder)

    def synthesize_near(
        self,
        tensors: Arrays,
        labels: Array,
        params: LanderParams,
        number: int,
        anchors: Array,
    ) -> dict[str, Array]:
        """Generate samples near anchors (classes, D); see `SampleTrainer.synthesize`.

        Beside the samples there are ``features``: the model's features of the samples
        in the space of the anchors, float32, shape (N, D).
        """
        for network in (self.model, self._student):
            projection(network, tensors)
        device = str(next(self.model.parameters()).device)
        begin = partial(
            AnchoredSynthesis,
            params=params,
            training=self.training,
            seed=derive(self.seed, "synthesis", number),
            anchors=to_torch(anchors[labels], device),
        )
        samples = self._samples(tensors, labels, begin)
        load(self.model, tensors)
        features = project(
            self.model, inputs(self.model, to_torch(samples["x"], device))
        )
        return {**samples, "features": to_numpy(features)}


@dataclass(eq=False)
class AnchoredSynthesis(Synthesis):
    """A synthesis of images whose projected features lie near their classes' anchors.

    Both networks have a projection. ``anchors``, (C, D), are those of the labels.
    """

    params: LanderParams
    anchors: Tensor

    @override
    def _new_generator(self) -> nn.Module:
        params, shape = self.params, self.teacher.input_shape
        self._anchored = AnchoredGenerator(
            self.anchors.shape[1],
            params.synthetic_batch,
            params.generator_noise,
            params.generator_width,
            shape,
        )
        return self._anchored

    @override
    def _generator_input(self, wanted: Tensor, draw: torch.Generator) -> Tensor:
        self._anchored.redraw(draw)
        return self.anchors[wanted]

    @override
    def _feature_loss(self, features: Tensor, wanted: Tensor) -> Tensor | float:
        projected = projection(self.teacher, {})(features)
        loss = bounding_loss(self.params.radius, projected, self.anchors[wanted])
        return self.params.anchor_weight * loss

    @override
    def _feature_lesson(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor | float]:
        targets, layer = project(self.teacher, x), projection(self.student, {})

        def lesson(features: Tensor, rows: Tensor) -> Tensor:
            error = mse_loss(layer(features), targets[rows])
            return self.params.anchor_weight * error

        return lesson


class AnchoredGenerator(nn.Module):
    """A generator from anchors (batch, D) to pixels (batch, C, H, W), by random layers.

    LANDER has its generator from NAYER (Tran et al., CVPR 2024,
    https://arxiv.org/abs/2310.00258). Samples of one class differ by the layer through
    which their anchor enters. That layer is drawn anew for each batch, and trained in
    it.
    """

    def __init__(
        self, anchors: int, batch: int, noise: int, width: int, shape: Sequence[int]
    ) -> None:
        """Initialise with torch's defaults; ``anchors`` is the length of an anchor."""
        super().__init__()
        self.norm = nn.BatchNorm1d(anchors)
        count = -(-batch // GROUP)
        self.layers = nn.ModuleList(nn.Linear(anchors, noise) for _ in range(count))
        self.images = ImageGenerator(noise, width, tuple(shape))

    @torch.no_grad()
    def redraw(self, draw: torch.Generator) -> None:
        """Draw the random layers anew: weights of variance 1, biases 0."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw))
            layer.bias.zero_()

    @override
    def forward(self, anchors: Tensor) -> Tensor:
        """Generate pixels, shape (batch, C, H, W)."""
        entering = self.norm(anchors)
        noise = [
            layer(entering[number * GROUP : (number + 1) * GROUP])
            for number, layer in enumerate(self.layers)
        ]
        pixels: Tensor = self.images(torch.cat(noise))
        return pixels


@lru_cache(maxsize=4)
def name_anchors(names: tuple[str, ...], encoder: str) -> Array:
    """Compute the mean of the last hidden states of each name, float32, (classes, D).

    An underscore is read as a blank.
    """
    if len({*names}) < len(names) or not all(names):
        expected = "classes whose names are all different, for anchors made of names"
        raise config_error("data.datasets", ", ".join(names), expected)
    body = Transformer(EncoderParams(encoder=encoder))
    if not body.text:
        raise config_error("strategy.encoder", encoder, "an encoder of texts")
    texts = [name.replace("_", " ") for name in names]
    numbers = encoder_tokenizer(encoder, _TOKENS).token_ids(texts)
    return to_numpy(body.eval().embed(torch.from_numpy(numbers)))


def projection(model: MultiHeadModel, tensors: Arrays) -> nn.Linear:
    """Find a model's layer from features to the space of the anchors.

    A model without such a layer gets one, of the shape that it has in ``tensors``. From
    then on it is a part of the model, shared and trained like the others.
    """
    layer = getattr(model, "projection", None)
    if layer is None:
        width = tensors["projection.weight"].shape[0]
        with seeded(0):
            layer = nn.Linear(model.features, width)
        model.add_module("projection", layer.to(next(model.parameters()).device))
    return cast(nn.Linear, model.projection)


@torch.no_grad()
def project(model: MultiHeadModel, x: Tensor) -> Tensor:
    """Compute features of inputs in the space of the anchors, (N, D)."""
    layer = projection(model.eval(), {})
    parts = [x[at : at + _CHUNK] for at in range(0, len(x), _CHUNK)]
    return torch.cat([layer(model.body(part)) for part in parts])


def bounding_loss(radius: float, projected: Tensor, anchors: Tensor) -> Tensor:
    """Compute how far features lie beyond a radius around anchors; 0 within.

    As in LANDER's code it is the mean squared difference of a whole batch, minus the
    radius.
    """
    return torch.relu(mse_loss(projected, anchors) - radius)
