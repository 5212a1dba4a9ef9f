"""A set of plain numbers, such as the columns of a table, checked where it enters."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.data.arrayset import labelled, single_precision
from fcl_flower.data.dataset import DataSet, Split
from fcl_flower.errors import ConfigError

Features: TypeAlias = npt.NDArray[np.float32]
"""Shape (N, numbers), in whatever unit the file has them."""


class FeatureSet(DataSet[Features]):
    """Samples of equally many numbers, at least one of each class in each split."""

    kind = "features"


def feature_split(
    x: npt.NDArray[Any], y: npt.NDArray[Any], x_key: str, y_key: str
) -> Split[Features]:
    """Return a split made of raw arrays.

    Args:
        x: numbers, finite also as float32, shape (N, numbers).
        y: whole numbers from 0.
        x_key: what an error calls ``x``, such as ``data/mine.npz: x_train``.
        y_key: what an error calls ``y``.

    Raises:
        ConfigError: a shape or value is not as described.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ConfigError(
            f"{x_key}: got shape {x.shape}, expected (N, numbers), none of 0."
        )
    return labelled(single_precision(x, x_key), y, y_key)
