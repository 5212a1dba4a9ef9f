"""Vision transformers of the library timm, in the form of Hugging Face's models."""

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
    """A vision transformer of timm without its head, with the attributes of the others.

    Attributes:
        network: timm's own, with its own names.
        config: what is asked of the configuration of the others.
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
        found: Tensor = network.norm_pre(network.patch_drop(placed))
        return found

    def resize(self, size: int) -> None:
        """Interpolate the table of positions for images of ``size`` pixels a side."""
        self.network.set_input_size(img_size=(size, size))
        self.config.image_size = (size, size)

    @override
    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        found = self.network.forward_features(pixel_values)
        return SimpleNamespace(last_hidden_state=found)


def load_timm(source: str, *, weights: bool = True) -> TimmEncoder:
    """Load a vision transformer, without its head.

    Args:
        source: a name of timm, whose weights are on the Hugging Face Hub; such a name
            and a file of weights, ``NAME:FILE``; or a folder that timm's
            ``save_for_hf`` wrote.
        weights: without them nothing is read or drawn: shapes alone are right.

    Raises:
        ConfigError: there is nothing of this kind.
    """
    name, _, file = source.partition(":")
    about: dict[str, Any] = {"num_classes": 0}
    if (folder := Path(source).expanduser()).is_dir():
        name = f"local-dir:{folder}"
    elif file:
        about["pretrained_cfg_overlay"] = {"file": str(Path(file).expanduser())}
    try:
        with torch.device("meta"):
            network = timm.create_model(name, **about)
        if not isinstance(network, VisionTransformer):
            raise TypeError(f"{type(network).__name__} is no VisionTransformer")
        if weights:
            network = timm.create_model(name, pretrained=True, **about)
    except (OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise config_error(
            "encoder",
            f"timm:{source}",
            "timm:NAME of a VisionTransformer, timm:NAME:FILE with its weights, or "
            f"timm:FOLDER of timm's save_for_hf ({reason})",
        ) from error
    return TimmEncoder(network)
