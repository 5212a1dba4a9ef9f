"""Images of any size and colour, brought to the shape that a model takes."""

from typing import Any

import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from fcl_flower.errors import ConfigError


def to_tensor(x: npt.NDArray[Any], input_shape: tuple[int, ...]) -> torch.Tensor:
    """Return ``(x / 255 - 0.5) / 0.25``, resized, with the model's channels.

    Grey becomes any number of channels by repetition, RGB becomes grey by its mean.
    Resizing is bilinear; when an image shrinks, neighbours are averaged first.

    Args:
        x: uint8, shape (N, H, W) or (N, H, W, 3); N may be 0.
        input_shape: (C, H, W) of the model.

    Returns:
        float32, shape (N, C, H, W), values in [-2, 2].

    Raises:
        ConfigError: the model takes no images, or neither 1 nor 3 channels while
            the images are RGB.
    """
    if len(input_shape) != 3:
        raise ConfigError(
            f"model: got input shape {input_shape}, expected (C, H, W) for images."
        )
    channels, height, width = input_shape
    images = torch.tensor(x, dtype=torch.float32)
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    if channels == 1:
        images = images.mean(1, keepdim=True)
    elif images.shape[1] not in (1, channels):
        raise ConfigError(
            f"model: got input shape {input_shape}, expected 1 or 3 channels for RGB "
            "images."
        )
    if not len(images):
        return torch.empty(0, *input_shape)
    if images.shape[2:] != (height, width):
        images = interpolate(
            images,
            (height, width),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
    images = (images / 255 - 0.5) / 0.25
    return images.expand(-1, channels, height, width).contiguous()
