"""The small network of pfl-research's CIFAR-10 benchmark: torch alone.

Granqvist et al., pfl-research, NeurIPS 2024, https://arxiv.org/abs/2404.06430: two
convolutions without padding, one pooling, a hidden layer of 128. Dropout and the Glorot
initialisation of the weights are as there.
"""

from collections.abc import Iterable

import torch
from torch import nn
from typing_extensions import override

CLASSES = 10
FEATURES = 128
LEARNING_RATE = 0.1
BATCH_SIZE = 10


class SimpleCnn(nn.Module):
    """Body from (batch, 3, 32, 32) to (batch, 128)."""

    def __init__(self) -> None:
        """Draw the weights from torch's global generator."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(14 * 14 * 64, FEATURES),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 128)."""
        features: torch.Tensor = self.layers(x)
        return features


def whole() -> nn.Sequential:
    """Return body and head, from (batch, 3, 32, 32) to (batch, 10)."""
    return nn.Sequential(SimpleCnn(), nn.Linear(FEATURES, CLASSES))


def sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of every side."""
    return torch.optim.SGD(parameters, lr=lr, fused=True)
