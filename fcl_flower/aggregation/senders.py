"""How many clients sent an entry: few of them may all be hostile."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.aggregation.tensors import Tensors
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Array

Combine: TypeAlias = Callable[[Tensors, Array], npt.NDArray[np.float64]]
"""From one tensor of each client and what it was before, to what it becomes."""


def sent_by(needed: int, combine: Combine) -> Combine:
    """Return ``combine`` for the entries that enough clients sent; the others stay.

    Args:
        needed: how many are enough: 2 f + 1, of which f hostile ones are fewer than
            half.
        combine: a rule.
    """

    def of(tensors: Tensors, old: Array) -> npt.NDArray[np.float64]:
        found = combine(tensors, old)
        return np.where(_senders(tensors, old) >= needed, found, old)

    return of


def _senders(tensors: Tensors, old: Array) -> npt.NDArray[np.int64]:
    """Return by how many clients each entry was sent, of the shape of ``old``."""
    count = np.zeros(old.size, np.int64)
    for tensor in tensors:
        if isinstance(tensor, SparseArray):
            count[tensor.indices] += 1
        elif tensor is not None:
            count += 1
    return count.reshape(old.shape)
