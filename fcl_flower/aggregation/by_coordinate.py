"""Median and trimmed mean of each coordinate, over those who sent it.

Yin, Chen, Kannan and Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from fcl_flower.aggregation.tensors import Tensors
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Array

_CELLS = 2**21
"""Numbers that are sorted at a time: little memory, whatever the model."""


def median(tensors: Tensors, old: Array) -> npt.NDArray[np.float64]:
    """Return the coordinate-wise median (definition 1).

    Args:
        tensors: of each client; None, or an entry of a `SparseArray` that is absent,
            was not sent.
        old: dense, of the same shape: what stays where nobody sent anything.
    """
    found = old.reshape(-1).astype(np.float64)
    for part, rows, count in _ordered(tensors, old.size):
        low, high = ((count - 1).clip(0) // 2)[None], (count // 2)[None]
        middle = (
            np.take_along_axis(rows, low, 0) + np.take_along_axis(rows, high, 0)
        ) / 2
        np.copyto(found[part], middle[0], where=count > 0)
    return found.reshape(old.shape)


def trimmed_mean(
    fraction: float,
) -> Callable[[Tensors, Array], npt.NDArray[np.float64]]:
    """Return a function that takes the coordinate-wise trimmed mean (definition 2).

    Of the m values of a coordinate the largest and the smallest are left out, as many
    of each as `count_hostile` says. The arguments are those of `median`.

    Args:
        fraction: the paper's beta, in (0, 0.5).
    """

    def of(tensors: Tensors, old: Array) -> npt.NDArray[np.float64]:
        found = old.reshape(-1).astype(np.float64)
        cuts = np.array([count_hostile(n, fraction) for n in range(len(tensors) + 1)])
        for part, rows, count in _ordered(tensors, old.size):
            place, cut = np.arange(len(rows))[:, None], cuts[count]
            kept = (place >= cut) & (place < count - cut)
            total = np.where(kept, rows, 0.0).sum(0)
            np.divide(total, count - 2 * cut, out=found[part], where=count > 0)
        return found.reshape(old.shape)

    return of


def count_hostile(count: int, fraction: float) -> int:
    """Return how many of some updates are taken to be hostile.

    The fraction of them, rounded up: a few clients are not defended by none. Always
    fewer than half, so that one or two are left.

    Args:
        count: how many updates there are, at least 0.
        fraction: in (0, 0.5).
    """
    # 0.3 * 10 is a little more than 3.
    wanted = int(np.ceil(np.round(fraction * count, 9)))
    return min(wanted, max(0, count - 1) // 2)


def _ordered(
    tensors: Tensors, size: int
) -> Iterator[tuple[slice, npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
    """Yield stretches: where, the values ascending in each column, and how many.

    Rows beyond the number of a column are NaN.
    """
    width = max(1, _CELLS // len(tensors))
    for start in range(0, size, width):
        part = slice(start, min(start + width, size))
        rows = np.full((len(tensors), part.stop - start), np.nan)
        for row, tensor in zip(rows, tensors, strict=True):
            if isinstance(tensor, SparseArray):
                first, last = np.searchsorted(tensor.indices, [start, part.stop])
                row[tensor.indices[first:last] - start] = tensor.values[first:last]
            elif tensor is not None:
                row[:] = tensor.reshape(-1)[part]
        count = (~np.isnan(rows)).sum(0)
        rows.sort(axis=0)  # NaN comes last
        yield part, rows, count
