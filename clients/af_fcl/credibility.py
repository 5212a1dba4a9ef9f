"""How far features that a flow has drawn are believed: as they suit the client's own.

Wuerkaixi et al., ICLR 2024, https://arxiv.org/abs/2502.14205, section 5 (correlation
estimation), as in the authors' code, but that a class with a single sample in the
batch, whose variance is none, counts like one without any.
"""

import math

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-6
"""Of a latent over the samples of a class: a feature that is never active has none."""


@torch.no_grad()
def credibility(
    latents: Tensor,
    labels: Tensor,
    drawn: Tensor,
    classes: Tensor,
    typical: Tensor,
) -> Tensor:
    """Return a weight for each drawn sample, shape (drawn,), at least 0.

    It is the mean over the coordinates of the density that they have under a normal
    distribution, which is that of the latents of the client's samples of the class.

    Args:
        latents: of the client's samples, shape (batch, D).
        labels: their classes, int64, shape (batch,).
        drawn: the drawn samples, shape (drawn, D): their latents, or what is to be
            compared in their place.
        classes: for which they were drawn, int64, shape (drawn,).
        typical: shape (): the weight for classes of which the batch tells nothing.
    """
    weights = typical.expand(len(drawn)).clone()
    for label in torch.unique(classes):
        own = latents[labels == label]
        if len(own) > 1:
            mean, variance = own.mean(0), own.var(0, correction=0)
            variance = variance.clamp(min=SMALLEST_VARIANCE)
            chosen = classes == label
            far = (drawn[chosen] - mean).square() / variance
            density = torch.exp(-far / 2) / (2 * math.pi * variance).sqrt()
            weights[chosen] = density.mean(1)
    return weights
