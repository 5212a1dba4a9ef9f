"""A network for series, such as nine channels of motion over 128 steps."""

import torch
from torch import nn
from torch.nn.functional import max_pool1d
from typing_extensions import override


class HarCnn(nn.Module):
    """Body from (batch, 9, 128) to (batch, 64).

    Two convolutions over time, each normalised over all channels and steps of one
    series: sensors of any unit will do, and there are no running statistics, which
    would differ from client to client and must not be averaged.
    """

    def __init__(self) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.conv1 = nn.Conv1d(9, 32, 5, padding=2)
        self.norm1 = nn.GroupNorm(1, 32)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.norm2 = nn.GroupNorm(1, 64)
        self.fc1 = nn.Linear(64 * 16, 64)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 64)."""
        x = max_pool1d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = max_pool1d(torch.relu(self.norm2(self.conv2(x))), 4)
        return torch.relu(self.fc1(x.flatten(1)))
