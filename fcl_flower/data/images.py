"""Conversion of images of any size and colour to the shape that a model takes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.normalisation import FIXED, Normalisation


def to_tensor(
    x: npt.NDArray[Any],
    input_shape: tuple[int, ...],
    normalisation: Normalisation = FIXED,
) -> torch.Tensor:
    """Convert images to a model's channels and size, and standardize their pixels.

    Grey images are repeated for each channel; RGB becomes grey by its mean. Resizing is
    bilinear, and averages neighbours when an image shrinks.

    Args:
        x: uint8, divided by 255, or floating point in [0, 1]; shape (N, H, W) or
            (N, H, W, 3).
        input_shape: channels, height and width of the model's images.
        normalisation: standardization of the pixels in [0, 1].

    Returns:
        float32, shape ``(N, *input_shape)``.
    """
    if len(input_shape) != 3:
        raise ConfigError(
            f"model: got input shape {input_shape}, expected (C, H, W) for images"
        )
    channels, height, width = input_shape
    images = _channels_first(x)
    if channels == 1:
        images = images.mean(1, keepdim=True)
    elif images.shape[1] not in (1, channels):
        raise ConfigError(
            f"model: got input shape {input_shape}, expected 1 or 3 channels for RGB "
            "images"
        )
    if not len(images):
        return torch.empty(0, *input_shape)
    white = 255 if x.dtype == np.uint8 else 1
    images = normalisation.standardized(_bilinear(images, height, width) / white)
    return images.expand(-1, channels, height, width).contiguous()


def resized(x: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """Resize images of shape (N, H, W) or (N, H, W, 3); uint8 stays uint8."""
    if x.shape[1:3] == (height, width):
        return x
    result = np.empty((len(x), height, width, *x.shape[3:]), x.dtype)
    # The images are resized in parts, since float32 takes four times the space.
    for start in range(0, len(x), 1000):
        part = _bilinear(_channels_first(x[start : start + 1000]), height, width)
        part = part.permute(0, 2, 3, 1)
        part = part.round() if x.dtype == np.uint8 else part
        result[start : start + 1000] = part.reshape(-1, *result.shape[1:]).numpy()
    return result


def _channels_first(x: npt.NDArray[Any]) -> torch.Tensor:
    images = torch.tensor(x, dtype=torch.float32)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)


def _bilinear(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if images.shape[2:] == (height, width):
        return images
    return interpolate(
        images,
        (height, width),
        mode="bilinear",
        align_corners=False,
        antialias=True,
    )
