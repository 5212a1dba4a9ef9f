"""The weighted mean, over those who sent an entry."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

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


def interpolate(
    before: Payload, after: Payload, weight: float, averaged_groups: Sequence[str]
) -> Payload:
    """Interpolate the averaged groups between two states.

    x becomes x + w (x' - x), with ``weight`` w in (0, 1]; integers are rounded. All
    other groups, and those that ``before`` does not have, are taken from ``after``.
    """
    return {
        group: _interpolate_arrays(before[group], arrays, weight)
        if group_kind(group) in averaged_groups and group in before
        else arrays
        for group, arrays in after.items()
    }


def _interpolate_arrays(before: Arrays, after: Arrays, weight: float) -> Arrays:
    found = {}
    for name, tensor in after.items():
        old, new = np.asarray(before[name]), np.asarray(tensor)
        between = old + weight * (new.astype(np.float64) - old)
        whole = new.dtype.kind in "iu"  # BatchNorm counts its batches
        found[name] = (np.rint(between) if whole else between).astype(new.dtype)
    return found


class Tensors(Protocol):
    """One tensor of each client; None where it was not sent."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[AnyArray | None]: ...


@dataclass(frozen=True, slots=True)
class TensorOfEach:
    """`Tensors` that are looked up in the updates one at a time, and held by nobody.

    Attributes:
        sent: tensors by name of each client.
        name: of the tensor.
    """

    sent: Sequence[Arrays]
    name: str

    def __len__(self) -> int:
        return len(self.sent)

    def __iter__(self) -> Iterator[AnyArray | None]:
        return (arrays.get(self.name) for arrays in self.sent)


_BLOCK = 2**14
"""Values whose products stay in a processor's cache until they are added."""

Weights: TypeAlias = Sequence[float] | npt.NDArray[np.float64]


def weighted_mean(
    weights: Weights | None,
) -> Callable[[Tensors, Array], npt.NDArray[np.float64]]:
    """Make the function that averages one tensor over the clients.

    ``weights`` are one for each client, at least 0, not all 0; None weighs all alike.
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
    """Average each entry, ``sum w x / sum w``, over the clients that sent it."""
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
