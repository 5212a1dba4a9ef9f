"""The weighted mean, over those who sent an entry."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.aggregation.tensors import Tensors
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Array

_BLOCK = 2**14
"""Values whose products stay in a processor's cache until they are added."""

Weights: TypeAlias = Sequence[float] | npt.NDArray[np.float64]


def weighted_mean(
    weights: Weights | None,
) -> Callable[[Tensors, Array], npt.NDArray[np.float64]]:
    """Return a function that takes the mean of one tensor of each client.

    Args:
        weights: of each client, at least 0, not all 0; None: all count alike.
    """

    def of(tensors: Tensors, old: Array) -> npt.NDArray[np.float64]:
        if weights is None:
            return _over_senders(tensors, weights, old)
        total = np.zeros(old.size, np.float64)
        everything = float(np.sum(weights))
        for tensor, weight in zip(tensors, weights, strict=True):
            if not isinstance(tensor, np.ndarray):
                return _over_senders(tensors, weights, old)
            flat, share = tensor.reshape(-1), weight / everything
            for start in range(0, total.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                total[block] += flat[block] * share
        return total.reshape(old.shape)

    return of


def _over_senders(
    tensors: Tensors, weights: Weights | None, old: Array
) -> npt.NDArray[np.float64]:
    """Return ``sum w x / sum w`` of each entry over the clients that sent it."""
    total, count = np.zeros(old.size), np.zeros(old.size)
    alike = [1] * len(tensors)
    shares = alike if weights is None else weights
    for tensor, weight in zip(tensors, shares, strict=True):
        if tensor is None:
            continue
        if isinstance(tensor, SparseArray):
            total[tensor.indices] += tensor.values * weight
            count[tensor.indices] += weight
        else:
            total += np.asarray(tensor).reshape(-1) * weight
            count += weight
    mean = old.reshape(-1).astype(np.float64)
    np.divide(total, count, out=mean, where=count > 0)
    return mean.reshape(old.shape)
