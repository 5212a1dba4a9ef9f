"""A frozen transformer: features of inputs that are the same for ever."""

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from fcl_flower.models.transformer.encoder import Transformer
from fcl_flower.models.transformer.params import FrozenParams


class FrozenTransformer(Transformer):
    """Body from inputs to (batch, K D): the last K blocks, each its mean over tokens.

    A block before the last knows more of some texts than the last, which was trained
    for another task. The parts have length 1 each, so that none outweighs another, and
    all of it has length 1. There is nothing to train.
    """

    def __init__(self, params: FrozenParams) -> None:
        """Load an encoder and freeze it.

        Raises:
            ConfigError: there is no such encoder, its blocks cannot be run one by one,
                or it has fewer.
        """
        super().__init__(params)
        self.freeze("model.pooled_blocks", params.pooled_blocks, params.encoder)
        self.features *= params.pooled_blocks

    @override
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, K D), of inputs or of such features."""
        if x.is_floating_point() and x.ndim == 2:
            return x
        hidden = self.run(self.enter(x), 0, self.first)
        pooled = []
        for number in range(self.first, len(self.blocks)):
            hidden = self.run(hidden, number, number + 1)
            pooled.append(normalize(self.pool(hidden)))
        found: Tensor = torch.cat(pooled, 1) / len(pooled) ** 0.5
        return found

    @override
    def frozen_features(self, x: Tensor) -> Tensor:
        """Return what `forward` does: nothing behind it is ever trained."""
        return self.embed(x)
