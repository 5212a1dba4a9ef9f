"""ResNet-18 for 32x32 images (He et al., CVPR 2016): 3x3 stem, no max pooling."""

import torch
from torch import nn
from typing_extensions import override


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution; batch normalisation follows, so it has no bias."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (batch, outputs, height / stride, width / stride)."""
        residual = torch.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return torch.relu(residual + self.shortcut(x))


class ResNet18(nn.Module):
    """Body from (batch, 3, 32, 32) to (batch, 512)."""

    def __init__(self) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.stem = _conv3x3(3, 64)
        self.norm = nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        for width in (128, 256, 512):
            self.blocks.append(BasicBlock(width // 2, width, 2))
            self.blocks.append(BasicBlock(width, width, 1))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 512)."""
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return x.mean((2, 3))
