"""Anchors of classes: where the text encoder puts their names.

LANDER (Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101). Its repository has
files of them for three data sets; here an encoder makes them of any names.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.text.tokenizers import encoder_tokenizer
from fcl_flower.models.multi_head import MultiHeadModel
from fcl_flower.models.seeded import seeded
from fcl_flower.models.transformer.encoder import Transformer
from fcl_flower.models.transformer.pretrained import EncoderParams
from fcl_flower.training.synthesis.networks import ImageGenerator
from fcl_flower.training.tensors import to_numpy

GROUP = 10
"""Samples that enter through one random layer, as in the authors' code."""
_TOKENS = 12


@lru_cache(maxsize=4)
def name_anchors(names: tuple[str, ...], encoder: str) -> Array:
    """Return the mean of the last hidden states of each name, float32, (classes, D).

    Args:
        names: of the classes; an underscore is read as a blank.
        encoder: of texts, see `load_encoder`.

    Raises:
        ConfigError: there is no such encoder, or it reads no texts; or two classes
            have one name, so that no anchor tells them apart.
    """
    if len({*names}) < len(names) or not all(names):
        expected = "classes whose names are all different, for anchors made of names"
        raise refuse("data.datasets", ", ".join(names), expected)
    body = Transformer(EncoderParams(encoder=encoder))
    if not body.text:
        raise refuse("strategy.encoder", encoder, "an encoder of texts")
    texts = [name.replace("_", " ") for name in names]
    numbers = encoder_tokenizer(encoder, _TOKENS).token_ids(texts)
    return to_numpy(body.eval().embed(torch.from_numpy(numbers)))


def projection(model: MultiHeadModel, tensors: Arrays) -> nn.Linear:
    """Return a model's layer from features to the space of the anchors.

    A model that has none gets one, of the shape that it has in ``tensors``: from then
    on it is a part of the model, shared and trained like the others.
    """
    found = getattr(model, "projection", None)
    if found is None:
        width = tensors["projection.weight"].shape[0]
        with seeded(0):
            found = nn.Linear(model.features, width)
        model.add_module("projection", found.to(next(model.parameters()).device))
    return cast(nn.Linear, model.projection)


class AnchoredGenerator(nn.Module):
    """From anchors (batch, D) to pixels (batch, C, H, W), by way of random layers.

    NAYER (Tran et al., CVPR 2024, https://arxiv.org/abs/2310.00258), from which LANDER
    has its generator: what differs between samples of one class is the layer through
    which its anchor enters; it is drawn anew for each batch, and trained in it.
    """

    def __init__(
        self, anchors: int, batch: int, noise: int, width: int, shape: Sequence[int]
    ) -> None:
        """Initialise with torch's defaults.

        Args:
            anchors: D.
            batch: samples that are made together.
            noise: numbers of which a sample is made.
            width: see `ImageGenerator`.
            shape: likewise.
        """
        super().__init__()
        self.norm = nn.BatchNorm1d(anchors)
        count = -(-batch // GROUP)
        self.layers = nn.ModuleList(nn.Linear(anchors, noise) for _ in range(count))
        self.images = ImageGenerator(noise, width, tuple(shape))

    @torch.no_grad()
    def redraw(self, draw: torch.Generator) -> None:
        """Let the random layers be others: weights of variance 1, biases 0."""
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw))
            layer.bias.zero_()

    @override
    def forward(self, anchors: Tensor) -> Tensor:
        """Return pixels, shape (batch, C, H, W)."""
        entering = self.norm(anchors)
        noise = [
            layer(entering[number * GROUP : (number + 1) * GROUP])
            for number, layer in enumerate(self.layers)
        ]
        found: Tensor = self.images(torch.cat(noise))
        return found
