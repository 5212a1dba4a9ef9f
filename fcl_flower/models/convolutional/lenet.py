"""The LeNet of FedWeIT (Yoon et al., ICML 2021), with its response normalisation."""

from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import conv2d, dropout
from typing_extensions import override

from fcl_flower.models.params import LeNetParams


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
        band = band.tril(self.radius).triu(-self.radius)[:, :, None, None]
        normalised, *_ = _Normalise.apply(x, band, self.bias, self.beta)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, normalised)


class _Normalise(torch.autograd.Function):
    """``x * u^-beta`` with ``u = bias + band * x^2``, differentiated by hand.

    Half of LeNet's time goes here when autograd keeps every intermediate tensor. The
    band is symmetric, so that it is its own transpose on the way back:
    ``dx = g u^-beta - 2 beta x band(g x u^(-beta - 1))``. The two factors are returned
    as well, because only then may they be kept under `torch.func`'s transforms.
    """

    generate_vmap_rule = True

    @staticmethod
    @override
    def forward(
        x: torch.Tensor, band: torch.Tensor, bias: float, beta: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        u = conv2d(x.square(), band).add_(bias)
        if beta == 0.75:  # a square root of a square root is faster than a power
            root = u.rsqrt()
            scale = root.sqrt().mul_(root)
        else:
            scale = u.pow(-beta)
        return x * scale, scale, u

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, band, _, ctx.beta = inputs
        _, scale, u = output
        ctx.mark_non_differentiable(scale, u)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, band, scale, u)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, band, scale, u = ctx.saved_tensors
        direct = gradients[0] * scale
        across = conv2d((direct * x).div_(u), band).mul_(x)
        return direct.sub_(across, alpha=2 * ctx.beta), None, None, None


class LeNet(nn.Module):
    """Body from (batch, 3, 32, 32) to (batch, 500 * width)."""

    def __init__(self, width: float = 1.0, dropout: float = 0.0) -> None:
        """Initialise with torch's defaults.

        Args:
            width: factor of the number of channels and of neurons, such as 0.8.
            dropout: fraction of the neurons of each fully connected layer that a
                training step leaves out, in [0, 1).
        """
        super().__init__()
        self.dropout = dropout
        first, second, hidden, self.features = (
            max(1, round(width * number)) for number in (20, 50, 800, 500)
        )
        self.conv1 = nn.Conv2d(3, first, 5, padding=2)
        self.conv2 = nn.Conv2d(first, second, 5, padding=2)
        self.norm = ResponseNorm(radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
        # Without padding and with the ceiling, 32 -> 16 -> 8 as TensorFlow's
        # "same": its one row of padding goes to the far side.
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.fc1 = nn.Linear(second * 8 * 8, hidden)
        self.fc2 = nn.Linear(hidden, self.features)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, 500 * width)."""
        # Channels last makes convolution, normalisation and pooling faster on a CPU.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.pool(self.norm(torch.relu(self.conv1(x))))
        x = self.pool(self.norm(torch.relu(self.conv2(x))))
        x = self._thinned(torch.relu(self.fc1(x.flatten(1))))
        return self._thinned(torch.relu(self.fc2(x)))

    def _thinned(self, x: torch.Tensor) -> torch.Tensor:
        """Return neurons of which dropout has left some out; none draw no numbers."""
        return dropout(x, self.dropout, self.training) if self.dropout else x


def lenet(params: LeNetParams) -> LeNet:
    """Return the network of the given width and dropout."""
    return LeNet(params.width, params.dropout)
