"""Mathematics of FedET's client: variations of samples, and noised label statistics.

Liu et al., IJCAI 2023, section 3.2, says of the data set U that it "utilizes data
augmentation", and not which. The variations here are the plainest ones for each kind of
data. A client sends two statistics of U's labels: the distribution P_y and the
information entropy H of the new classes. With noise on both, `label_loss` says how well
these numbers hide a single label. The set of classes and the trained tensors, which
travel beside them, hide nothing.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from strategies.fedet import FedEtParams

DROPPED: Final = 0.1
"""The probability with which a word of a document is left out."""

SHIFTED: Final = 8
"""The divisor of an image's size that gives its largest shift in each direction."""

NOISE: Final = 0.1
"""The standard deviation of noise, as a multiple of that of the feature."""


def augmented(examples: Examples, copies: int, seed: int) -> Examples:
    """Append ``copies`` times as many variations to the samples.

    - Documents, integers (N, words): each word but the first and the last of the
      document is left out with probability 0.1, and what follows moves up.
    - Images (N, C, H, W): moved by up to an eighth of the size in each direction, with
      the edge repeated, and mirrored left to right with probability 1/2.
    - All else: Gaussian noise of a tenth of each feature's standard deviation.
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
    most = length // SHIFTED
    shift = rng.integers(-most, most, size=(count, 1), endpoint=True)
    return np.asarray(np.clip(np.arange(length) + shift, 0, length - 1))


def _noisy(x: Tensor, rng: np.random.Generator) -> Tensor:
    if not len(x):
        return x
    drawn = torch.from_numpy(rng.standard_normal(x.shape)).to(x)
    return x + NOISE * x.std(0, correction=0) * drawn


def class_frequencies(labels: Array, classes: int) -> Array:
    """Compute the share of each class, float64, shape (classes,); 0 without labels."""
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1.0))


def information_entropy(distribution: Array) -> float:
    """Compute ``-sum p ln p``, in nats; 0 for a single class."""
    present = distribution[distribution > 0]
    return float(max(0.0, -(present * np.log(present)).sum()))


def label_statistics(
    trained: Array,
    new: Array,
    classes: int,
    params: FedEtParams,
    rng: np.random.Generator,
) -> Arrays:
    """Collect the label statistics that travel beside a group of classes.

    Args:
        trained: labels of the samples on which the group was trained and distilled;
            their shares are sent.
        new: labels of the samples of new classes; their entropy is sent.
        classes: number of classes of the head.
        params: how exactly the statistics are sent, and the noise's standard deviation.
            Noise is added to each share, which is then cut at 0 and scaled to the sum
            1. It is also added to the entropy, which is cut at 0.
        rng: source of the noise; secret, since anyone who can repeat the noise can
            subtract it.

    Returns:
        ``classes`` (int64, the new ones, ascending) and, if they are sent,
        ``distribution`` (float32, shape (classes,)) and ``entropy`` (float32, ()).
    """
    statistics = {"classes": np.unique(new).astype(np.int64)}
    if params.distribution != "withheld":
        shares = class_frequencies(trained, classes)
        if params.distribution == "noised":
            shares = np.maximum(shares + rng.normal(0, params.noise, classes), 0)
            even = np.full(classes, 1 / classes)
            shares = shares / shares.sum() if shares.any() else even
        statistics["distribution"] = shares.astype(np.float32)
    if params.entropy != "withheld":
        entropy = information_entropy(class_frequencies(new, classes))
        if params.entropy == "noised":
            entropy = max(0.0, entropy + float(rng.normal(0, params.noise)))
        statistics["entropy"] = np.asarray(entropy, np.float32)
    return statistics


def label_loss(trained: int, new: int, params: FedEtParams) -> float:
    """Compute mu^2 of a group's statistics, for one label (`privacy.accounting`).

    Neighbours differ in the label of one sample. It is among the new ones, and may be
    in the buffer a second time. The numbers of samples count as public. The shares of n
    = ``trained`` labels are then at most 2 sqrt(2) / n apart. The entropy of n =
    ``new`` labels is at most 2 max(1, ln n) / n apart. A count that goes from 1 to 0
    changes -p ln p by ln n / n. No other step changes it by more than that, or than 1 /
    n. Exact statistics add nothing to the result.
    """
    sensitivities = [
        *[2 * math.sqrt(2) / trained] * (params.distribution == "noised"),
        *[2 * max(1.0, math.log(new)) / new] * (params.entropy == "noised"),
    ]
    return sum((sensitivity / params.noise) ** 2 for sensitivity in sensitivities)
