"""Random variations of samples: FedET's data set U, made of a small memory.

Liu et al., IJCAI 2023, section 3.2, says that it "utilizes data augmentation", and not
which; these are the plainest ones for each kind of data.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fcl_flower.core.types import Array
from fcl_flower.data.examples import Examples

DROPPED: Final = 0.1
"""Probability with which a word of a document is left out."""

SHIFTED: Final = 8
"""An image moves by up to its size divided by this, in each direction."""

NOISE: Final = 0.1
"""Standard deviation of noise, as a multiple of that of the feature."""


def augmented(examples: Examples, copies: int, seed: int) -> Examples:
    """Return the samples, and then ``copies`` times as many variations of them.

    - Documents, integers (N, words): each word but the first and the last of the
      document is left out with probability 0.1, and what follows moves up.
    - Images (N, C, H, W): moved by up to an eighth of the size in each direction, with
      the edge repeated, and mirrored left to right with probability 1/2.
    - All else: Gaussian noise of a tenth of each feature's standard deviation.

    Args:
        examples: N samples.
        copies: variations of each, at least 0.
        seed: of all of them.
    """
    rng = np.random.default_rng(seed)
    vary: Callable[[Tensor, np.random.Generator], Tensor] = _noisy
    if not examples.x.is_floating_point():
        vary = _shortened
    elif examples.x.dim() == 4:
        vary = _moved
    varied = [vary(examples.x, rng) for _ in range(copies)]
    return Examples(
        torch.cat([examples.x, *varied]), torch.cat([examples.y] * (copies + 1))
    )


def _shortened(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return documents without some of their inner words, padded with 0."""
    if not x.numel():
        return x
    places = torch.arange(x.shape[1], device=x.device)
    last = ((x != 0) * places).amax(1, keepdim=True)
    drawn = torch.from_numpy(rng.random(x.shape)).to(x.device)
    inner = (places > 0) & (places < last)
    kept = ~(inner & (drawn < DROPPED))
    order = torch.argsort((~kept).long(), dim=1, stable=True)
    count = kept.sum(1, keepdim=True)
    return x.gather(1, order) * (places < count)


def _moved(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images moved and mirrored, of the same size."""
    count, channels, *size = x.shape
    rows, columns = (_places(count, length, rng) for length in size)
    mirrored = rng.random((count, 1)) < 0.5
    columns = np.where(mirrored, size[1] - 1 - columns, columns)
    index = (
        np.arange(count)[:, None, None, None],
        np.arange(channels)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    return x[tuple(torch.from_numpy(part).to(x.device) for part in index)]


def _places(count: int, length: int, rng: np.random.Generator) -> Array:
    """Return whence each line of a moved image comes, shape (count, length)."""
    most = length // SHIFTED
    shift = rng.integers(-most, most, size=(count, 1), endpoint=True)
    return np.asarray(np.clip(np.arange(length) + shift, 0, length - 1))


def _noisy(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return numbers with noise, in proportion to what differs between samples."""
    if not len(x):
        return x
    drawn = torch.from_numpy(rng.standard_normal(x.shape)).to(x)
    return x + NOISE * x.std(0, correction=0) * drawn
