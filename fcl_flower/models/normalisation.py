"""The standardization of images' pixels before a network sees them."""

from typing import NamedTuple

from torch import Tensor, nn


class Normalisation(NamedTuple):
    """A standardization of pixels between 0 and 1: ``(x - mean) / deviation``.

    Mean and deviation have one value for all channels, or a value for each channel.
    Deviations are above 0.
    """

    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.25,)

    def standardized(self, pixels: Tensor) -> Tensor:
        """Standardize pixels between 0 and 1, shape (N, C, H, W)."""
        mean, deviation = (_by_channel(values, pixels) for values in self)
        return (pixels - mean) / deviation

    def pixels(self, images: Tensor) -> Tensor:
        """Convert standardized images back to pixels between 0 and 1."""
        mean, deviation = (_by_channel(values, images) for values in self)
        return images * deviation + mean


FIXED = Normalisation()
"""The normalisation of networks without a normalisation of their own."""

PIXELS = Normalisation((0.0,), (1.0,))
"""The normalisation that leaves pixels between 0 and 1 unchanged."""


def own_normalisation(body: nn.Module) -> Normalisation:
    """Return the normalisation of the pixels on which a body was trained.

    It consists of the body's ``pixel_mean`` and ``pixel_deviation``, with a number for
    each channel. It is `FIXED` for a body without these attributes.
    """
    mean = getattr(body, "pixel_mean", FIXED.mean)
    deviation = getattr(body, "pixel_deviation", FIXED.deviation)
    return Normalisation(tuple(map(float, mean)), tuple(map(float, deviation)))


def _by_channel(values: tuple[float, ...], images: Tensor) -> Tensor | float:
    return values[0] if len(values) == 1 else images.new_tensor(values)[:, None, None]
