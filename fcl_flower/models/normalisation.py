"""By what the pixels of images are standardized before a network sees them."""

from typing import NamedTuple

from torch import Tensor, nn


class Normalisation(NamedTuple):
    """Standardize pixels between 0 and 1: ``(x - mean) / deviation``.

    Both have one value for all channels, or one for each; deviations are above 0.
    """

    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.25,)

    def standardized(self, pixels: Tensor) -> Tensor:
        """Standardize pixels between 0 and 1, shape (N, C, H, W)."""
        mean, deviation = (_by_channel(values, pixels) for values in self)
        return (pixels - mean) / deviation

    def pixels(self, images: Tensor) -> Tensor:
        """Turn standardized images back to pixels between 0 and 1."""
        mean, deviation = (_by_channel(values, images) for values in self)
        return images * deviation + mean


FIXED = Normalisation()
"""The same for all data: that of a network which has none of its own."""

PIXELS = Normalisation((0.0,), (1.0,))
"""That which leaves pixels between 0 and 1 as they are."""


def own_normalisation(body: nn.Module) -> Normalisation:
    """Ask a body for the mean and deviation of the pixels that it was trained on.

    They are its ``pixel_mean`` and ``pixel_deviation``, a number for each channel; of
    one that has none they are `FIXED`.
    """
    mean = getattr(body, "pixel_mean", FIXED.mean)
    deviation = getattr(body, "pixel_deviation", FIXED.deviation)
    return Normalisation(tuple(map(float, mean)), tuple(map(float, deviation)))


def _by_channel(values: tuple[float, ...], images: Tensor) -> Tensor | float:
    return values[0] if len(values) == 1 else images.new_tensor(values)[:, None, None]
