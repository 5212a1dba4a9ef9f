"""Pooled outputs distillation: how far what a network sees has moved, stage by stage.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513, equations 3 to 6.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize


def stages(body: nn.Module) -> list[nn.Module]:
    """Return the parts of a body, one after the other, that have a 2-D convolution.

    A part is a block or a layer; sequences are looked into. None of a body without
    images.
    """
    found = []
    for part in body.children():
        if isinstance(part, nn.Sequential):
            found += stages(part)
        elif any(isinstance(module, nn.Conv2d) for module in part.modules()):
            found.append(part)
    return found


@contextmanager
def stage_outputs(body: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list in which are, after each call of ``body``, the maps of that call.

    These are what its `stages` return, of shape (batch, channels, height, width); what
    has another shape is none. A body without maps leaves the list empty.
    """
    maps: list[Tensor] = []

    def begin(module: nn.Module, given: object) -> None:
        maps.clear()

    def note(module: nn.Module, given: object, output: Tensor) -> None:
        if output.ndim == 4:
            maps.append(output)

    handles = [body.register_forward_pre_hook(begin)]
    handles += [stage.register_forward_hook(note) for stage in stages(body)]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def spatial_distance(maps: Sequence[Tensor], old: Sequence[Tensor]) -> Tensor | float:
    """Return POD-spatial: the mean over stages and samples; 0 without any stage.

    A map is summed over its width, and over its height; both sums together are one
    vector. As in the authors' code, and not in equations 3 to 5, the values of a map
    are squared before, the vector has length 1, and the distance is not squared.

    Args:
        maps: each of shape (batch, channels, height, width).
        old: those of the old network, of the same shapes.
    """
    distances = [
        torch.linalg.vector_norm(_pooled(new) - _pooled(before), dim=1).mean()
        for new, before in zip(maps, old, strict=True)
    ]
    return torch.stack(distances).mean() if distances else 0.0


def flat_distance(features: Tensor, old: Tensor) -> Tensor:
    """Return POD-flat, the mean over samples of 1 - cos(h, h_old).

    This is half the squared distance of equation 6 between features of length 1, and
    what the authors' code has.

    Args:
        features: shape (batch, features).
        old: those of the old network.
    """
    return (1 - cosine_similarity(features, old, dim=1)).mean()


def _pooled(maps: Tensor) -> Tensor:
    """Return what is compared of maps, shape (batch, channels * (height + width))."""
    energy = maps.square()
    sums = [energy.sum(3).flatten(1), energy.sum(2).flatten(1)]
    return normalize(torch.cat(sums, 1), dim=1)
