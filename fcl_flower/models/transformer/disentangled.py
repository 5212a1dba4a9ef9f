"""An encoder of texts whose features are two spaces: for all tasks, and for each.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, section 3.2.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.models.transformer.encoder import Transformer
from fcl_flower.models.transformer.params import DisentangledParams


class DisentangledTransformer(Transformer):
    """Body from texts to (batch, D): the generic space, and behind it the specific one.

    Each is a linear layer with tanh on the mean of the last hidden states; the encoder
    is trained as well. In the paper they see the state of the first token, and have 128
    features each of 768; here half of the encoder's, so that a head is no larger.

    Attributes:
        generic: to the first space, (batch, D // 2).
        specific: to the second one, the rest of the D features.
        order: logits of a text and of its halves swapped, from the generic space.
        task: logits of tasks, from the specific space.
    """

    def __init__(self, params: DisentangledParams) -> None:
        """Load an encoder, and draw what lies on top.

        Raises:
            ConfigError: there is no such encoder, or it is not one of texts.
        """
        super().__init__(params)
        if not self.text:
            raise refuse("model.encoder", params.encoder, "an encoder of texts")
        self.width = width = self.features // 2
        rest = self.features - width
        self.generic = nn.Linear(self.features, width)
        self.specific = nn.Linear(self.features, rest)
        self.order = nn.Linear(width, 2)
        self.task = nn.Linear(rest, params.max_tasks)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return both spaces, shape (batch, D), of texts as token numbers."""
        pooled = super().forward(x)
        spaces = [torch.tanh(self.generic(pooled)), torch.tanh(self.specific(pooled))]
        return torch.cat(spaces, 1)

    def pooled(self, x: Tensor) -> Tensor:
        """Return what the encoder alone makes of texts, shape (batch, D)."""
        return super().forward(x)
