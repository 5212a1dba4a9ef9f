"""Fixed filters for images, made from two photographs: nothing is trained.

Coates, Ng and Lee, AISTATS 2011, https://proceedings.mlr.press/v15/coates11a.html:
patches are brought to zero mean and unit variance and whitened, filters are the
k-means centres of such patches, and a filter's answers, above a threshold, are averaged
over the parts of the image. They learn the filters from the images to be classified.
Here the patches are those of the two photographs that scikit-learn ships, so that all
clients have the same filters without any message, and before the first task.
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    adaptive_avg_pool2d,
    avg_pool2d,
    conv2d,
    normalize,
    unfold,
)
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.models.params import PatchFiltersParams

_SCALE = 4
"""By how much the photographs are made smaller, so that a patch shows an edge."""
_PATCHES = 30_000
_ITERATIONS = 15
_FLAT = 10 / 255**2 / 0.25**2
"""What is added to a patch's variance, as in the paper (10 in grey values of 0 to 255),
in units of our images, which are (v - 0.5) / 0.25 of values v in [0, 1]."""
_REGULAR = 0.1
"""What is added to the eigenvalues in whitening, as in the paper."""
_THRESHOLD = 0.5
_CHUNK = 128


class PatchFilters(nn.Module):
    """Frozen body from images (batch, 3, H, W) to (batch, 2 * filters * grid^2).

    Images are those of `fcl_flower.data.datasets.images.to_tensor`, at least a patch
    wide and high. It takes `frozen_features` in their place, which are all that it
    computes.
    """

    def __init__(self, params: PatchFiltersParams) -> None:
        """Make the filters.

        Raises:
            ConfigError: Pillow, which reads the photographs, is not installed.
        """
        super().__init__()
        self.grid = params.grid
        self.features = 2 * params.filters * params.grid**2
        weight, bias = photo_filters(params.filters, params.patch)
        # Parameters, so that they go to a device; frozen, so that they stay at home.
        self.weight = nn.Parameter(weight.clone(), requires_grad=False)
        self.bias = nn.Parameter(bias.clone(), requires_grad=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, features), of images or of such features."""
        if x.ndim == 2:
            return x
        # Filter and normalisation of each patch in one: w (p - mean) / deviation - b,
        # where w mean is 0, since the patches that made the filters had no mean.
        side = self.weight.shape[-1]
        mean = avg_pool2d(x.mean(1, keepdim=True), side, stride=1)
        square = avg_pool2d(x.square().mean(1, keepdim=True), side, stride=1)
        variance = (square - mean.square()).clamp(min=0)
        answer = conv2d(x, self.weight) / (variance + _FLAT).sqrt()
        answer -= self.bias[:, None, None]
        both = torch.cat([answer, -answer], 1)
        active = torch.relu(both - _THRESHOLD)
        return adaptive_avg_pool2d(active, self.grid).flatten(1)

    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Return features, shape (N, features), so that they are computed once."""
        parts = [self(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.features)


@lru_cache(maxsize=4)
def photo_filters(count: int, side: int) -> tuple[Tensor, Tensor]:
    """Return filters for normalised patches and what is taken from their answers.

    Always the same for the same arguments.

    Args:
        count: of filters.
        side: pixels a side of a patch.

    Returns:
        Shapes (count, 3, side, side) and (count,).

    Raises:
        ConfigError: Pillow, which reads the photographs, is not installed.
    """
    generator = torch.Generator().manual_seed(0)
    patches = _patches(side)
    chosen = torch.randperm(len(patches), generator=generator)[:_PATCHES]
    patches = patches[chosen]
    patches = patches - patches.mean(1, keepdim=True)
    patches /= (patches.var(1, correction=0, keepdim=True) + _FLAT).sqrt()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    roots = (values.clamp(min=0) + _REGULAR).rsqrt()
    whitening = (vectors * roots) @ vectors.T
    whitened = (patches - mean) @ whitening
    shape = (count, whitened.shape[1])
    centres = normalize(torch.randn(shape, generator=generator))
    for _ in range(_ITERATIONS):  # spherical k-means, in which a sign does not count
        likeness = whitened @ centres.T
        nearest = likeness.abs().argmax(1)
        weighted = whitened * likeness.gather(1, nearest[:, None])
        # A centre without patches stays where it is.
        centres = normalize((1e-3 * centres).index_add_(0, nearest, weighted))
    weight = centres @ whitening
    return weight.reshape(count, 3, side, side), weight @ mean


def _patches(side: int) -> Tensor:
    """Return all patches of the photographs, shape (N, 3 * side^2)."""
    from sklearn.datasets import load_sample_images  # a second, which others do without

    try:
        photographs = load_sample_images().images
    except ImportError as error:
        expected = 'Pillow to be installed: pip install "fcl-flower[images]"'
        raise refuse("model", "patch-filters", expected) from error
    parts = []
    for photograph in photographs:
        x = torch.from_numpy(photograph.copy()).movedim(2, 0)[None]
        x = avg_pool2d((x / 255 - 0.5) / 0.25, _SCALE)
        parts.append(unfold(x, side)[0].T)
    return torch.cat(parts)
