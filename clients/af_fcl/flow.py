"""A normalizing flow of features: what is drawn from it looks like theirs.

RealNVP (Dinh et al., ICLR 2017, https://arxiv.org/abs/1605.08803, equations 2 to 8)
conditioned on the class. Networks and scales are those of the authors' code of AF-FCL,
which has them from nflows (Durkan et al., 2020).
"""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot
from typing_extensions import override

from fcl_flower.core.seeds import derive
from strategies.af_fcl.server import BLOCKS


class Block(nn.Module):
    """Two layers that add to what enters them, by gates of the class."""

    def __init__(self, hidden: int, classes: int) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.gate = nn.Linear(classes, hidden)

    @override
    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Return features, shape (batch, hidden)."""
        added: Tensor = self.second(leaky_relu(self.first(leaky_relu(x))))
        return x + added * torch.sigmoid(self.gate(context))


class Coupling(nn.Module):
    """The first features are kept; the others are scaled and shifted by them."""

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        """Initialise with torch's defaults; see `Flow`."""
        super().__init__()
        self.kept = features // 2
        self.entry = nn.Linear(self.kept + classes, hidden)
        self.blocks = nn.ModuleList(Block(hidden, classes) for _ in range(BLOCKS))
        self.exit = nn.Linear(hidden, 2 * (features - self.kept))

    def coefficients(self, kept: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale, between 0.001 and 1.001, and shift, each (batch, changed)."""
        x = self.entry(torch.cat((kept, context), 1))
        for block in self.blocks:
            x = block(x, context)
        # In mixed precision, too: the inverse divides by the scale.
        shift, scale = self.exit(x).to(kept.dtype).chunk(2, 1)
        return torch.sigmoid(scale + 2) + 1e-3, shift

    @override
    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mapped features, and log |det J| of each sample, (batch,)."""
        kept, changed = x[:, : self.kept], x[:, self.kept :]
        scale, shift = self.coefficients(kept, context)
        return torch.cat((kept, changed * scale + shift), 1), scale.log().sum(1)

    def inverse(self, u: Tensor, context: Tensor) -> Tensor:
        """Return what `forward` maps to ``u``."""
        kept, changed = u[:, : self.kept], u[:, self.kept :]
        scale, shift = self.coefficients(kept, context)
        return torch.cat((kept, (changed - shift) / scale), 1)


class Flow(nn.Module):
    """A bijection of features, for each class another, to standard normal noise.

    Attributes:
        orders: of the features before each layer, int64, shape (layers, features).
    """

    orders: Tensor

    def __init__(
        self, features: int, classes: int, layers: int, hidden: int, seed: int
    ) -> None:
        """Initialise with torch's defaults.

        Before the first half of the layers features are reversed, so that each is
        changed; before the others they are shuffled.

        Args:
            features: width of what is mapped.
            classes: that it is conditioned on.
            layers: coupling layers.
            hidden: width of the network in each.
            seed: of the run: all clients shuffle alike.
        """
        super().__init__()
        self.classes = classes
        self.couplings = nn.ModuleList(
            Coupling(features, classes, hidden) for _ in range(layers)
        )
        reverse = np.arange(features)[::-1]
        orders = [
            reverse
            if layer < layers // 2
            else np.random.default_rng(derive(seed, "flow-order", layer)).permutation(
                features
            )
            for layer in range(layers)
        ]
        # No parameter, and the same everywhere: it does not travel.
        self.register_buffer("orders", torch.tensor(np.stack(orders)), persistent=False)

    @override
    def forward(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents, and the log density of each sample given its class.

        Args:
            features: shape (batch, features).
            labels: int64, shape (batch,).

        Returns:
            latents of the shape of ``features``; densities, natural logarithms, of
            shape (batch,).
        """
        context, u = self._context(labels), features
        density = torch.zeros(len(u), device=u.device)
        for order, coupling in zip(self.orders, self.couplings, strict=True):
            u, volume = coupling(u[:, order], context)
            density = density + volume
        normal = -0.5 * (u.square() + math.log(2 * math.pi)).sum(1)
        return u, density + normal

    @torch.no_grad()
    def inverse(self, latents: Tensor, labels: Tensor) -> Tensor:
        """Return the features of latents, shape (batch, features); no graph."""
        context, x = self._context(labels), latents
        layers = list(zip(self.orders, self.couplings, strict=True))
        for order, coupling in reversed(layers):
            x = coupling.inverse(x, context)[:, order.argsort()]
        return x

    def _context(self, labels: Tensor) -> Tensor:
        """Return one-hot classes, float32, shape (batch, classes)."""
        return one_hot(labels, self.classes).float()
