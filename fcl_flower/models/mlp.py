"""Two hidden layers for tabular data."""

import torch
from torch import nn
from typing_extensions import override

HIDDEN = 128


class Mlp(nn.Module):
    """Body from (batch, columns) to (batch, 128).

    Each layer is normalised over its outputs of one sample: it learns at the same pace
    whatever the unit of the columns, and there are no running statistics, which would
    differ from client to client and must not be averaged.
    """

    def __init__(self, columns: int) -> None:
        """Initialise with torch's defaults.

        Args:
            columns: of the table, at least 1.
        """
        super().__init__()
        self.fc1 = nn.Linear(columns, HIDDEN)
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 128)."""
        x = torch.relu(self.norm1(self.fc1(x)))
        return torch.relu(self.norm2(self.fc2(x)))
