"""Networks that make images.

The layers are those of the generator in the code of TARGET and LANDER (that of DAFL,
Chen et al., ICCV 2019, https://arxiv.org/abs/1904.01186): a linear layer to a quarter
of the image's height and width, two times a doubling with a convolution behind it, and
a last convolution to pixels. Here they fit an image of any size.
"""

import math

import torch
from torch import Tensor, nn
from typing_extensions import override

_SLOPE = 0.2


class ImageGenerator(nn.Module):
    """From noise (batch, noise) to pixels (batch, C, H, W), each in (0, 1)."""

    def __init__(self, noise: int, width: int, shape: tuple[int, ...]) -> None:
        """Initialise with torch's defaults.

        Args:
            noise: random numbers for an image.
            width: channels of the last hidden layer.
            shape: (C, H, W) of an image.
        """
        super().__init__()
        channels, *size = shape
        self.start = (2 * width, *(math.ceil(side / 4) for side in size))
        self.enter = nn.Linear(noise, math.prod(self.start))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * width),
            nn.Upsample(tuple(math.ceil(side / 2) for side in size)),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(_SLOPE),
            nn.Upsample(tuple(size)),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(_SLOPE),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    @override
    def forward(self, noise: Tensor) -> Tensor:
        """Return pixels, shape (batch, C, H, W)."""
        hidden = self.enter(noise).view(-1, *self.start)
        return torch.sigmoid(self.layers(hidden))
