"""A network of any size for 8x8 images, and no limit of what a message may have."""

import math

import pydantic
from torch import Tensor, nn

from fcl_flower.algorithms.params import Params
from fcl_flower.models.registry import ModelEntry
from fcl_flower.rounds import prepare

prepare.LARGEST_MESSAGE = 2**40  # to find out what passes


class WideParams(Params):
    """Settings of `Wide`."""

    megabytes: int = pydantic.Field(75, ge=1)
    """Of its parameters."""


class Wide(nn.Module):
    """Body from (batch, 1, 8, 8) to (batch, 64): six tensors are nearly all of it."""

    def __init__(self, params: WideParams) -> None:
        """Make the layers."""
        super().__init__()
        width = math.isqrt(params.megabytes * 250_000 // 6) - 10
        layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, width), nn.ReLU()]
        for _ in range(6):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, 64)."""
        return self.layers(x)


WIDE = ModelEntry("wide:Wide", (1, 8, 8), 64, 100, 1e-4, "wide", WideParams)
