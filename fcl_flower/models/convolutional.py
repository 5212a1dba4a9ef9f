"""Networks that are trained from scratch, most of them for images.

- LeNet is that of FedWeIT (Yoon et al., ICML 2021), with its response normalisation.
- ResNet-18 is for 32x32 images (He et al., CVPR 2016): 3x3 stem, no max pooling.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, max_pool1d, max_pool2d, silu
from typing_extensions import override

from fcl_flower.models.registry import LeNetParams


class ResponseNorm(nn.Module):
    """A local response normalisation across channels, with a summed window.

    ``y[c] = x[c] / (bias + alpha * sum_{|d| <= radius} x[c + d]^2) ** beta`` is the
    form of TensorFlow, which the authors used. `nn.LocalResponseNorm` divides
    ``alpha`` by the window's size and is several times slower on a CPU.
    """

    def __init__(self, radius: int, bias: float, alpha: float, beta: float) -> None:
        super().__init__()
        self.radius, self.bias, self.alpha, self.beta = radius, bias, alpha, beta

    @override
    def forward(self, x: Tensor) -> Tensor:
        # The sum over a window of channels is a 1x1 convolution with a banded matrix.
        # The matrix is no buffer, since buffers travel and are averaged.
        channels = x.shape[1]
        band = x.new_full((channels, channels), self.alpha)
        band = band.tril(self.radius).triu(-self.radius)[:, :, None, None]
        normalised, *_ = _Normalise.apply(x, band, self.bias, self.beta)  # type: ignore[no-untyped-call]
        return cast(Tensor, normalised)


class _Normalise(torch.autograd.Function):
    """The function ``x * u^-beta`` with ``u = bias + band * x^2`` and its derivative.

    With autograd, which keeps every intermediate tensor, it takes half of LeNet's time.
    The band is its own transpose in the backward pass, since it is symmetric:
    ``dx = g u^-beta - 2 beta x band(g x u^(-beta - 1))``. The two factors are outputs,
    too, because only outputs may be kept under `torch.func`'s transforms.
    """

    generate_vmap_rule = True

    @staticmethod
    @override
    def forward(
        x: Tensor, band: Tensor, bias: float, beta: float
    ) -> tuple[Tensor, Tensor, Tensor]:
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, band, scale, u = ctx.saved_tensors
        direct = gradients[0] * scale
        across = conv2d((direct * x).div_(u), band).mul_(x)
        return direct.sub_(across, alpha=2 * ctx.beta), None, None, None


class LeNet(nn.Module):
    """A body from (batch, 3, 32, 32) to (batch, 500 * width)."""

    def __init__(self, params: LeNetParams) -> None:
        super().__init__()
        self.dropout = params.dropout
        first, second, hidden, self.features = (
            max(1, round(params.width * number)) for number in (20, 50, 800, 500)
        )
        self.conv1 = nn.Conv2d(3, first, 5, padding=2)
        self.conv2 = nn.Conv2d(first, second, 5, padding=2)
        self.norm = ResponseNorm(radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
        # The ceiling without padding gives 32 -> 16 -> 8, as TensorFlow's "same", which
        # puts its one row of padding at the far side.
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.fc1 = nn.Linear(second * 8 * 8, hidden)
        self.fc2 = nn.Linear(hidden, self.features)

    @override
    def forward(self, x: Tensor) -> Tensor:
        # Channels last makes convolution, normalisation and pooling faster on a CPU.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.pool(self.norm(torch.relu(self.conv1(x))))
        x = self.pool(self.norm(torch.relu(self.conv2(x)))).flatten(1)
        for layer in (self.fc1, self.fc2):
            x = torch.relu(layer(x))
            if self.dropout:  # even a rate of 0 would draw random numbers
                x = dropout(x, self.dropout, self.training)
        return x


class SmallNet(nn.Module):
    """A body from (batch, 1, 8, 8) to (batch, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x))
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.relu(self.fc1(x.flatten(1)))


class GreyCnn(nn.Module):
    """A body from (batch, 1, 28, 28) to (batch, 64) with 46,080 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        return torch.relu(self.fc1(x.flatten(1)))


class HarCnn(nn.Module):
    """A body from (batch, 9, 128) to (batch, 64).

    It has two convolutions over time, each normalised over all channels and steps of
    one series. So sensors may have any unit. There are no running statistics, which
    would differ from client to client and must not be averaged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(9, 32, 5, padding=2)
        self.norm1 = nn.GroupNorm(1, 32)
        self.conv2 = nn.Conv1d(32, 64, 5, padding=2)
        self.norm2 = nn.GroupNorm(1, 64)
        self.fc1 = nn.Linear(64 * 16, 64)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = max_pool1d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = max_pool1d(torch.relu(self.norm2(self.conv2(x))), 4)
        return torch.relu(self.fc1(x.flatten(1)))


class Mlp(nn.Module):
    """A body from (batch, columns) to (batch, 128), normalised as `HarCnn`.

    It learns at the same pace whatever the unit of the columns.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Linear(columns, 128), nn.LayerNorm(128)
        self.fc2, self.norm2 = nn.Linear(128, 128), nn.LayerNorm(128)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.fc1(x)))
        return torch.relu(self.norm2(self.fc2(x)))


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Make a 3x3 convolution without bias, since batch normalisation follows it."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """A block of two 3x3 convolutions and a shortcut.

    The shortcut is projected if the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    @override
    def forward(self, x: Tensor) -> Tensor:
        residual = torch.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return torch.relu(residual + self.shortcut(x))


class ResNet18(nn.Module):
    """A body from (batch, 3, 32, 32) to (batch, 512)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv3x3(3, 64)
        self.norm = nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        for width in (128, 256, 512):
            self.blocks.append(BasicBlock(width // 2, width, 2))
            self.blocks.append(BasicBlock(width, width, 1))

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return x.mean((2, 3))


EXPANSION = 4
GROUPS = 8
STAGES = ((64, 2, 1), (112, 3, 2))
"""The channels, the number of blocks, and the first block's stride of each stage."""


class Block(nn.Module):
    """An inverted bottleneck with squeeze and excitation.

    It has a shortcut if input and output have the same shape.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide, narrow = EXPANSION * inputs, inputs // 4
        self.expand = nn.Conv2d(inputs, wide, 1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, wide)
        self.depthwise = nn.Conv2d(
            wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False
        )
        self.norm2 = nn.GroupNorm(GROUPS, wide)
        self.squeeze = nn.Linear(wide, narrow)
        self.excite = nn.Linear(narrow, wide)
        self.project = nn.Conv2d(wide, outputs, 1, bias=False)
        self.norm3 = nn.GroupNorm(GROUPS, outputs)
        self.shortcut = stride == 1 and inputs == outputs

    @override
    def forward(self, x: Tensor) -> Tensor:
        wide = silu(self.norm1(self.expand(x)))
        wide = silu(self.norm2(self.depthwise(wide)))
        gate = torch.sigmoid(self.excite(silu(self.squeeze(wide.mean((2, 3))))))
        y: Tensor = self.norm3(self.project(wide * gate[:, :, None, None]))
        return x + y if self.shortcut else y


class EfficientNet(nn.Module):
    """A body from (batch, 3, 32, 32) to (batch, 256)."""

    def __init__(self) -> None:
        super().__init__()
        channels = 48
        self.stem = nn.Conv2d(3, channels, 4, stride=4, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.blocks = nn.Sequential()
        for outputs, count, stride in STAGES:
            for place in range(count):
                step = 1 if place else stride
                self.blocks.append(Block(channels, outputs, step))
                channels = outputs
        self.top = nn.Conv2d(channels, 256, 1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, 256)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(silu(self.norm1(self.stem(x))))
        return silu(self.norm2(self.top(x))).mean((2, 3))
