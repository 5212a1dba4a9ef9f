"""Two convolutions for 28x28 grey images, such as MNIST: seconds an epoch on a CPU."""

import torch
from torch import nn
from typing_extensions import override


class GreyCnn(nn.Module):
    """Body from (batch, 1, 28, 28) to (batch, 64), of 46,080 parameters."""

    def __init__(self) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 64)."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        return torch.relu(self.fc1(x.flatten(1)))
