"""The weighted mean of each entry over the clients that sent it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    SparseArray,
    group_kind,
)

Matrix: TypeAlias = npt.NDArray[np.float64]
Weights: TypeAlias = Sequence[float] | Matrix

_BLOCK = 2**14
"""The number of values whose products fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The clients' tensors of one name, or None for clients that did not send it.

    Iteration looks up one tensor of ``sent`` at a time, and keeps none.
    """

    sent: Sequence[Arrays]
    name: str

    def __len__(self) -> int:
        return len(self.sent)

    def __iter__(self) -> Iterator[AnyArray | None]:
        return (arrays.get(self.name) for arrays in self.sent)


Combine: TypeAlias = Callable[[Tensors, Array], Matrix]
"""A function of one tensor of each client, and its old value, to its new value."""


def interpolate(
    before: Payload, after: Payload, weight: float, averaged_groups: Sequence[str]
) -> Payload:
    """Interpolate the averaged groups between two states.

    A value x of ``before`` and x' of ``after`` give x + w (x' - x), with ``weight`` w
    in (0, 1]; integers are rounded. Other groups, and groups that ``before`` does not
    have, are those of ``after``.
    """
    interpolated: dict[str, Arrays] = dict(after)
    for group, arrays in after.items():
        if group_kind(group) in averaged_groups and group in before:
            between: dict[str, Array] = {}
            for name, tensor in arrays.items():
                old, new = np.asarray(before[group][name]), np.asarray(tensor)
                values = old + weight * (new.astype(np.float64) - old)
                between[name] = as_type(values, new.dtype)
            interpolated[group] = between
    return interpolated


def as_type(values: Matrix, dtype: np.dtype[np.generic]) -> Array:
    """Convert values to a dtype; integers, such as BatchNorm's counts, are rounded."""
    return (np.rint(values) if dtype.kind in "iu" else values).astype(dtype)


def weighted_mean(weights: Weights | None, needed: int = 1) -> Combine:
    """Make the function that averages one tensor over the clients.

    ``weights`` has a weight for each client, at least 0, not all 0; None weighs all
    equally. An entry stays if fewer than ``needed`` clients with a weight above 0 sent
    it.
    """

    def average(tensors: Tensors, old: Array) -> Matrix:
        if weights is None:
            return _over_senders(tensors, [1] * len(tensors), old, needed)
        total = np.zeros(old.size, np.float64)
        weight_sum = float(np.sum(weights))
        for tensor, weight in zip(tensors, weights, strict=True):
            if not isinstance(tensor, np.ndarray):
                return _over_senders(tensors, weights, old, needed)
            flat, share = tensor.reshape(-1), weight / weight_sum
            for start in range(0, total.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                total[block] += flat[block] * share
        return total.reshape(old.shape)

    return average


def _over_senders(
    tensors: Tensors, weights: Weights, old: Array, needed: int
) -> Matrix:
    """Average each entry, ``sum w x / sum w``, over the clients that sent it."""
    total, weighed = np.zeros(old.size), np.zeros(old.size)
    senders = np.zeros(old.size, np.int64)
    for tensor, weight in zip(tensors, weights, strict=True):
        if tensor is None:
            continue
        places: slice | Array = slice(None)
        if isinstance(tensor, SparseArray):
            places, values = tensor.indices, tensor.values
        else:
            values = np.asarray(tensor).reshape(-1)
        total[places] += values * weight
        weighed[places] += weight
        senders[places] += weight > 0
    mean = old.reshape(-1).astype(np.float64)
    np.divide(total, weighed, out=mean, where=senders >= needed)
    return mean.reshape(old.shape)
