"""A head that tells the turns of images apart, as well as their classes.

Zhu et al., CVPR 2021 (PASS), whose label augmentation FedSpace takes over: class c
turned by k quarters is class ``turns * c + k``. Answers are those of images as they
are.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.models.multi_head import CLOSED, GrowingHead

TURNS = 4


class TurnedHead(GrowingHead, nn.Linear):
    """A linear layer from features to one logit for each turn of each class.

    Attributes:
        turns: of an image, 1 or `TURNS`.
        temperature: by which logits are divided.
    """

    def __init__(
        self, features: int, classes: int, turns: int, temperature: float
    ) -> None:
        """Draw the weights from torch's generator.

        Args:
            features: of what is classified.
            classes: at least 1.
            turns: 1 or `TURNS`.
            temperature: above 0.
        """
        super().__init__(features, classes * turns)
        self.turns, self.temperature = turns, temperature

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes), of features of upright images."""
        return self.hide(super().forward(x)[:, :: self.turns] / self.temperature)

    def of_turns(self, x: Tensor) -> Tensor:
        """Return logits of all turns, shape (batch, classes * turns)."""
        logits = super().forward(x) / self.temperature
        if self.closed is None:
            return logits
        return logits.masked_fill(self.places(self.closed), CLOSED)

    def places(self, of_classes: Tensor) -> Tensor:
        """Return what is said of classes, shape (classes,), for each of their turns."""
        return of_classes.repeat_interleave(self.turns)

    def turned_labels(self, labels: Tensor) -> Tensor:
        """Return the labels of `turned` images, int64, shape (batch * turns,)."""
        quarters = torch.arange(self.turns, device=labels.device)
        return (labels[:, None] * self.turns + quarters).flatten()


def turned(images: Tensor, turns: int) -> Tensor:
    """Return each image followed by itself turned by one quarter, two and three.

    Args:
        images: shape (batch, channels, side, side).
        turns: how many of each, 1 or `TURNS`.

    Returns:
        shape (batch * turns, channels, side, side).
    """
    found = [torch.rot90(images, quarters, (2, 3)) for quarters in range(turns)]
    return torch.stack(found, 1).flatten(0, 1)
