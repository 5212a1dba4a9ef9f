"""Augmentation: random transforms of each batch of training samples.

The built-in transforms are for images, and change each image independently.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import pad

from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.core.registry import Registry
from fcl_flower.models.build import seeded
from fcl_flower.models.normalisation import Normalisation

Transform: TypeAlias = Callable[[Tensor, Generator], Tensor]
"""A function of samples (N, ...) and a generator of random numbers to such samples.

The result has the same shape. Images have pixels in [0, 1], shape (N, C, H, W).
"""

JITTER: Final = 0.4
"""The largest distance from 1 of the factors of brightness, contrast, saturation."""
_GREY = 0.5
_LUMINANCE = (0.299, 0.587, 0.114)
"""The weights of red, green and blue (ITU-R BT.601)."""


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror each image from left to right with probability one half."""
    mirrored = _uniform(images, generator) < 1 / 2
    return torch.where(mirrored, images.flip(3), images)


def crop(images: Tensor, generator: Generator) -> Tensor:
    """Shift each image by up to an eighth of its sides, such as 4 of 32 pixels.

    The borders are filled with black (He et al., CVPR 2016,
    https://arxiv.org/abs/1512.03385, section 4.2).
    """
    count, channels, *sides = images.shape
    height, width = (max(1, round(side / 8)) for side in sides)
    padded = pad(images, (width, width, height, height))
    rows, columns = (
        torch.randint(2 * shift + 1, (count, 1), generator=generator)
        + torch.arange(side)
        for shift, side in zip((height, width), sides, strict=True)
    )
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def colour(images: Tensor, generator: Generator) -> Tensor:
    """Change brightness, contrast and saturation of each image by up to 40 percent."""
    brightness, contrast, saturation = (
        1 + JITTER * (2 * _uniform(images, generator) - 1) for _ in range(3)
    )
    images = (brightness * images).clamp(0, 1)
    mean = _grey(images).mean((2, 3), keepdim=True)
    images = (mean + contrast * (images - mean)).clamp(0, 1)
    grey = _grey(images)
    return (grey + saturation * (images - grey)).clamp(0, 1)


def cutout(images: Tensor, generator: Generator) -> Tensor:
    """Cover a part of each image with grey: half as high and half as wide.

    The centre of this part is anywhere in the image (DeVries and Taylor, 2017,
    https://arxiv.org/abs/1708.04552, section 3.2).
    """
    height, width = images.shape[2:]
    inside = []
    for side in (height, width):
        first = (_uniform(images, generator)[:, 0, 0] * side).long() - side // 4
        places = torch.arange(side, device=images.device)
        inside.append((places >= first) & (places < first + side // 2))
    rows, columns = inside
    covered = rows[:, None, :, None] & columns[:, None, None, :]
    return images.masked_fill(covered, _GREY)


IMAGES: Final[Mapping[str, Transform]] = {
    "flip": flip,
    "crop": crop,
    "colour": colour,
    "cutout": cutout,
}
"""The built-in transforms by name."""

TRANSFORMS: Final[Registry[Callable[..., Any]]] = Registry(
    "training.augment", "fcl_flower.transforms", cast(type[Any], Callable), IMAGES
)
"""The registry of transforms.

Another package declares a callable under ``fcl_flower.transforms``. It is a
`Transform`, or takes samples alone and draws from torch's global generator, as
torchvision's transforms do.
"""


def augmentation(
    names: Sequence[str], normalisation: Normalisation | None
) -> Transform:
    """Compose the named transforms, in their order, to one of a network's inputs.

    Args:
        names: names in `TRANSFORMS`.
        normalisation: normalisation of images, undone before the transforms and redone
            after them; None for other samples.
    """
    steps = [IMAGES[n] if n in IMAGES else own(n, TRANSFORMS[n]) for n in names]

    @torch.no_grad()
    def augment(x: Tensor, generator: Generator) -> Tensor:
        if normalisation is not None:
            x = normalisation.pixels(x)
        for step in steps:
            x = step(x, generator)
        return x if normalisation is None else normalisation.standardized(x)

    return augment


def own(name: str, transform: Callable[..., Any]) -> Transform:
    """Make a transform of a user's callable.

    The callable gets the generator if it has two positional parameters without a
    default. Torch's global generator is seeded before each call and restored after it.

    Raises:
        ConfigError: the callable takes neither samples alone nor samples and a
            generator.
        ContractError: a call returns anything but samples of the same shape and dtype.
    """
    # A module's parameters are those of its ``forward``.
    called = transform.forward if isinstance(transform, nn.Module) else transform
    parameters = _needed(called)
    if parameters > 2:
        expected = "a callable of samples, or of samples and a torch.Generator"
        raise config_error("training.augment", name, expected)

    def changed(x: Tensor, generator: Generator) -> Tensor:
        seed = int(torch.randint(2**62, (), generator=generator))
        with seeded(seed):
            result = transform(x, generator) if parameters == 2 else transform(x)
        if not isinstance(result, Tensor) or (result.shape, result.dtype) != (
            x.shape,
            x.dtype,
        ):
            kind = type(result).__name__
            got = f"{result.dtype} {tuple(result.shape)}" if kind == "Tensor" else kind
            raise ContractError(
                f"training.augment {name}: got {got}, expected {x.dtype} "
                f"{tuple(x.shape)}, samples as they were given"
            )
        return result

    return changed


def _needed(called: Callable[..., Any]) -> int:
    """Count positional parameters that have no default."""
    try:
        parameters = signature(called).parameters.values()
    except ValueError:  # a function in C
        return 1
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in positional and parameter.default is Parameter.empty
        for parameter in parameters
    )


def _uniform(images: Tensor, generator: Generator) -> Tensor:
    """Draw a number in [0, 1) for each image, shape (N, 1, 1, 1).

    The CPU draws, so that the numbers are the same for every device.
    """
    drawn = torch.rand(len(images), 1, 1, 1, generator=generator)
    return drawn.to(images.device)


def _grey(images: Tensor) -> Tensor:
    """Make images grey, shape (N, 1, H, W)."""
    if images.shape[1] != len(_LUMINANCE):
        return images.mean(1, keepdim=True)
    weights = images.new_tensor(_LUMINANCE)[:, None, None]
    return (weights * images).sum(1, keepdim=True)
