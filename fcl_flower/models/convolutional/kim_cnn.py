"""The network for text of Kim (EMNLP 2014), over word vectors that stay as they are."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import embedding_bag
from typing_extensions import override

from fcl_flower.models.convolutional.sparse_windows import Windows

WIDTHS = (3, 4, 5)
FILTERS = 128
DROPOUT = 0.3


class KimCnn(nn.Module):
    """Body from (batch, words) to (batch, 384): filters of 3, 4 and 5 words.

    A filter slides over whole windows of one document only, so that the result
    depends neither on padding nor on the other documents of a batch. The word vectors
    are no parameter: they neither train nor travel.
    """

    def __init__(self, table: npt.NDArray[Any]) -> None:
        """Initialise with torch's defaults.

        Args:
            table: float32, shape (words + 1, D): the vector of each word number; row
                0 is padding, all zeros.
        """
        super().__init__()
        self.register_buffer("table", torch.tensor(table), persistent=False)
        self.table: torch.Tensor
        self.convs = nn.ModuleList(
            nn.Conv1d(table.shape[1], FILTERS, width) for width in WIDTHS
        )
        self.dropout = nn.Dropout(DROPOUT)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 384), of word numbers (batch, words)."""
        windows = Windows(x, self.table, max(WIDTHS))
        tensors = dict(self.convs.named_parameters())
        pooled = [
            windows.largest(tensors[f"{n}.weight"]) + tensors[f"{n}.bias"]
            for n in range(len(WIDTHS))
        ]
        features: torch.Tensor = self.dropout(torch.relu(torch.cat(pooled, 1)))
        return features

    def extremes(
        self, x: torch.Tensor, weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the largest and smallest response of filters without bias.

        Args:
            x: word numbers, shape (batch, words), padded with 0.
            weights: filters, each of shape (F, D, width).

        Returns:
            for each of ``weights`` the maximum and the minimum over time, shape
            (2, batch, F).
        """
        windows = Windows(x, self.table, max(WIDTHS))
        return [windows.extremes(weight) for weight in weights]

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean word vector of each document, shape (batch, D).

        Equation 6 of Chaudhary et al., Findings of EMNLP 2022.
        """
        return embedding_bag(x, self.table, mode="mean", padding_idx=0)
