"""The LeNet of FedWeIT (Yoon et al., ICML 2021), with its response normalisation."""

import torch
from torch import nn
from torch.nn.functional import conv2d
from typing_extensions import override


class ResponseNorm(nn.Module):
    """Local response normalisation across channels, with a summed window.

    ``y[c] = x[c] / (bias + alpha * sum_{|d| <= radius} x[c + d]^2) ** beta``: the
    form of TensorFlow, which the authors used. `nn.LocalResponseNorm` divides
    ``alpha`` by the window's size and is several times slower on a CPU.
    """

    def __init__(self, radius: int, bias: float, alpha: float, beta: float) -> None:
        """Keep the constants of the formula; nothing is learnt."""
        super().__init__()
        self.radius = radius
        self.bias = bias
        self.alpha = alpha
        self.beta = beta

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised ``x``, shape (batch, channels, height, width)."""
        # The sum over a window of channels is a 1x1 convolution with a banded
        # matrix. It is made here, not kept as a buffer, so that nothing of it
        # can travel or be averaged.
        channels = x.shape[1]
        band = x.new_full((channels, channels), self.alpha)
        band = band.tril(self.radius).triu(-self.radius)
        scale = conv2d(x.square(), band[:, :, None, None]) + self.bias
        return x * scale.pow(-self.beta)


class LeNet(nn.Module):
    """Body from (batch, 3, 32, 32) to (batch, 500)."""

    def __init__(self) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 20, 5, padding=2)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
        self.norm = ResponseNorm(radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
        # Without padding and with the ceiling, 32 -> 16 -> 8 as TensorFlow's
        # "same": its one row of padding goes to the far side.
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.fc1 = nn.Linear(50 * 8 * 8, 800)
        self.fc2 = nn.Linear(800, 500)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 500)."""
        # Channels last makes convolution, normalisation and pooling faster on a CPU.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.pool(self.norm(torch.relu(self.conv1(x))))
        x = self.pool(self.norm(torch.relu(self.conv2(x))))
        x = torch.relu(self.fc1(x.flatten(1)))
        return torch.relu(self.fc2(x))
