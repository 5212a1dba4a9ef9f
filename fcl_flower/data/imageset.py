"""An image classification set in memory, checked once where it enters."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.data.arrayset import labelled
from fcl_flower.data.dataset import DataSet, Split
from fcl_flower.errors import ConfigError

Images: TypeAlias = npt.NDArray[np.uint8]
"""Shape (N, H, W) for grey or (N, H, W, 3) for RGB."""


class ImageSet(DataSet[Images]):
    """Images of one shape, at least one of each class in each split."""

    kind = "images"


def image_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split[Images]:
    """Return a split made of raw arrays.

    Args:
        x: uint8, or floating point in [0, 1], which is scaled to 0..255.
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape, dtype or value is not as described.
    """
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or 0 in x.shape:
        raise ConfigError(
            f"{x_key}: got shape {x.shape}, expected (N, H, W) or (N, H, W, 3)."
        )
    if np.issubdtype(x.dtype, np.floating):
        # Written so that NaN fails the comparison too.
        if not (x.min() >= 0 and x.max() <= 1):
            raise ConfigError(
                f"{x_key}: got values from {x.min():g} to {x.max():g}, "
                "expected floating point values in [0, 1]."
            )
        x = np.rint(x * 255.0).astype(np.uint8)
    if x.dtype != np.uint8:
        raise ConfigError(
            f"{x_key}: got dtype {x.dtype}, expected uint8 or floating point in [0, 1]."
        )
    return labelled(x, y, y_key)
