"""Vision transformers of the library timm with the interface of Hugging Face's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import config_error


class TimmEncoder(nn.Module):
    """A vision transformer of timm without its head, like an encoder of Hugging Face.

    Attributes:
        network: timm's network, with timm's names.
        config: attributes that `fcl_flower.models.encoder` reads of Hugging Face's
            configurations.
    """

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.network = network
        self.config = SimpleNamespace(
            model_type=type(network).__name__,
            hidden_size=network.embed_dim,
            num_channels=network.patch_embed.proj.in_channels,
            image_size=network.patch_embed.img_size,
            patch_size=network.patch_embed.patch_size,
        )

    def embeddings(self, images: Tensor) -> Tensor:
        """Compute the input of the first block, shape (batch, tokens, D)."""
        network = self.network
        placed = network._pos_embed(network.patch_embed(images))
        entered: Tensor = network.norm_pre(network.patch_drop(placed))
        return entered

    def resize(self, size: int) -> None:
        """Interpolate the table of positions for images of ``size`` pixels a side."""
        self.network.set_input_size(img_size=(size, size))
        self.config.image_size = (size, size)

    @override
    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        states = self.network.forward_features(pixel_values)
        return SimpleNamespace(last_hidden_state=states)


def load_timm(source: str, *, weights: bool = True) -> TimmEncoder:
    """Load a vision transformer without its head.

    Args:
        source: a name of timm, whose weights are on the Hugging Face Hub; such a name
            with a file of weights, ``NAME:FILE``; or a folder that timm's
            ``save_for_hf`` wrote.
        weights: whether to load weights; without them only the shapes are right.

    Raises:
        ConfigError: there is no such vision transformer.
    """
    name, _, file = source.partition(":")
    options: dict[str, Any] = {"num_classes": 0}
    if (folder := Path(source).expanduser()).is_dir():
        name = f"local-dir:{folder}"
    elif file:
        options["pretrained_cfg_overlay"] = {"file": str(Path(file).expanduser())}
    try:
        with torch.device("meta"):
            network = timm.create_model(name, **options)
        if not isinstance(network, VisionTransformer):
            raise TypeError(f"{type(network).__name__} is no VisionTransformer")
        if weights:
            network = timm.create_model(name, pretrained=True, **options)
    except (OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise config_error(
            "encoder",
            f"timm:{source}",
            "timm:NAME of a VisionTransformer, timm:NAME:FILE with its weights, or "
            f"timm:FOLDER of timm's save_for_hf ({reason})",
        ) from error
    return TimmEncoder(network)
