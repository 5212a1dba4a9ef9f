"""An EfficientNet for 32x32 images (Tan and Le, ICML 2019), small enough for a CPU.

Its blocks are those of the paper: a wider space by a 1x1 convolution, a convolution of
each channel by itself, squeeze and excitation, and a 1x1 convolution back. There are
fewer and they start at 8x8 pixels, where a step is cheap. Group normalisation stands
in for batch normalisation, whose running statistics belong to one client's images and
must not be averaged with those of others.
"""

import torch
from torch import nn
from torch.nn.functional import silu
from typing_extensions import override

EXPANSION = 4
GROUPS = 8
STAGES = ((64, 2, 1), (112, 3, 2))
"""Channels, blocks and stride of the first block."""


class Block(nn.Module):
    """Inverted bottleneck with squeeze and excitation; a shortcut where shapes fit."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        wide, narrow = EXPANSION * inputs, inputs // 4
        self.expand = nn.Conv2d(inputs, wide, 1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, wide)
        self.depthwise = nn.Conv2d(
            wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False
        )
        self.norm2 = nn.GroupNorm(GROUPS, wide)
        self.squeeze = nn.Linear(wide, narrow)
        self.excite = nn.Linear(narrow, wide)
        self.project = nn.Conv2d(wide, outputs, 1, bias=False)
        self.norm3 = nn.GroupNorm(GROUPS, outputs)
        self.shortcut = stride == 1 and inputs == outputs

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (batch, outputs, height / stride, width / stride)."""
        wide = silu(self.norm1(self.expand(x)))
        wide = silu(self.norm2(self.depthwise(wide)))
        gate = torch.sigmoid(self.excite(silu(self.squeeze(wide.mean((2, 3))))))
        y: torch.Tensor = self.norm3(self.project(wide * gate[:, :, None, None]))
        return x + y if self.shortcut else y


class EfficientNet(nn.Module):
    """Body from (batch, 3, 32, 32) to (batch, 256)."""

    def __init__(self) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        channels = 48
        self.stem = nn.Conv2d(3, channels, 4, stride=4, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.blocks = nn.Sequential()
        for outputs, count, stride in STAGES:
            for place in range(count):
                step = 1 if place else stride
                self.blocks.append(Block(channels, outputs, step))
                channels = outputs
        self.top = nn.Conv2d(channels, 256, 1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, 256)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 256)."""
        x = self.blocks(silu(self.norm1(self.stem(x))))
        return silu(self.norm2(self.top(x))).mean((2, 3))
