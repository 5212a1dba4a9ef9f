"""Robust rules, whose results a minority of hostile clients cannot move far.

The median and the trimmed mean of each coordinate are by Yin, Chen, Kannan and
Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498. The other rules compare whole
updates.
"""

from collections.abc import Iterator, Sequence
from statistics import median_low

import numpy as np
import numpy.typing as npt

from fcl_flower.aggregation.mean import Combine, Matrix, Tensors
from fcl_flower.core.share import share
from fcl_flower.core.types import AnyArray, Array, Arrays, SparseArray

_CELLS = 2**21
"""The number of values that are sorted at a time, which bounds the memory."""

# ---- rules of each coordinate over its senders; with too few of them ``old`` stays


def median(needed: int) -> Combine:
    """Make the function that takes the coordinate-wise median (definition 1).

    A coordinate stays if fewer than ``needed`` clients sent it.
    """

    def combine(tensors: Tensors, old: Array) -> Matrix:
        result = old.reshape(-1).astype(np.float64)
        for part, rows, count in _ordered(tensors, old.size):
            low, high = ((count - 1).clip(0) // 2)[None], (count // 2)[None]
            lower = np.take_along_axis(rows, low, 0)
            middle = (lower + np.take_along_axis(rows, high, 0)) / 2
            np.copyto(result[part], middle[0], where=count >= needed)
        return result.reshape(old.shape)

    return combine


def trimmed_mean(fraction: float, needed: int) -> Combine:
    """Make the function that takes the coordinate-wise trimmed mean (definition 2).

    The largest and the smallest values of a coordinate are left out, `count_hostile` of
    each. ``fraction`` is the paper's beta, in (0, 0.5). A coordinate stays if fewer
    than ``needed`` clients sent it.
    """

    def combine(tensors: Tensors, old: Array) -> Matrix:
        result = old.reshape(-1).astype(np.float64)
        cuts = np.array([count_hostile(n, fraction) for n in range(len(tensors) + 1)])
        for part, rows, count in _ordered(tensors, old.size):
            place, cut = np.arange(len(rows))[:, None], cuts[count]
            inside = (place >= cut) & (place < count - cut)
            total = np.where(inside, rows, 0.0).sum(0)
            np.divide(total, count - 2 * cut, out=result[part], where=count >= needed)
        return result.reshape(old.shape)

    return combine


def count_hostile(count: int, fraction: float) -> int:
    """Count the updates that are taken to be hostile: a fraction, rounded up.

    ``fraction`` lies in (0, 0.5). The result is always fewer than half of ``count``.
    Rounding up defends even a few clients.
    """
    return min(share(fraction, count), max(0, count - 1) // 2)


def _ordered(
    tensors: Tensors, size: int
) -> Iterator[tuple[slice, Matrix, npt.NDArray[np.int64]]]:
    """Yield parts of a tensor: the slice, sorted values, and numbers of senders.

    The values have a column for each coordinate, ascending; rows beyond the column's
    number of senders are NaN.
    """
    for part in _parts(size, len(tensors)):
        rows = np.full((len(tensors), part.stop - part.start), np.nan)
        for row, tensor in zip(rows, tensors, strict=True):
            if isinstance(tensor, SparseArray):
                first, last = np.searchsorted(tensor.indices, [part.start, part.stop])
                places = tensor.indices[first:last] - part.start
                row[places] = tensor.values[first:last]
            elif tensor is not None:
                row[:] = tensor.reshape(-1)[part]
        count = (~np.isnan(rows)).sum(0)
        rows.sort(axis=0)  # NaN comes last
        yield part, rows, count


def _parts(size: int, clients: int) -> Iterator[slice]:
    width = max(1, _CELLS // clients)
    for start in range(0, size, width):
        yield slice(start, min(start + width, size))


# ---- whole updates

_LARGEST = 1e100
"""The largest magnitude of a difference that counts, so that squares stay finite."""
_SMOOTHING = 1e-6
_STEPS = 1000


def gram(sent: Sequence[Arrays], start: Arrays) -> Matrix:
    """Compute the Gram matrix, (clients, clients), of differences from ``start``."""
    total = np.zeros((len(sent), len(sent)))
    for name, old in start.items():
        if old.dtype.kind == "f":
            tensors = [arrays.get(name) for arrays in sent]
            flat = np.asarray(old).reshape(-1)
            for part in _parts(len(flat), len(sent)):
                rows = np.stack([_moved(tensor, flat, part) for tensor in tensors])
                total += rows @ rows.T
    return total


def clipped(sent: Sequence[Arrays], start: Arrays, limit: float) -> list[Arrays]:
    """Clip differences from ``start`` to ``limit`` times their median norm.

    The median of an even number of norms is the lower middle norm, which no minority of
    clients can make large.
    """
    lengths = np.sqrt([gram([arrays], start)[0, 0] for arrays in sent])
    longest = limit * median_low(lengths.tolist())
    return [
        arrays
        if length <= longest
        else {
            name: _towards(tensor, np.asarray(start[name]), longest / length)
            for name, tensor in arrays.items()
        }
        for arrays, length in zip(sent, lengths, strict=True)
    ]


def krum_weights(products: Matrix, fraction: float) -> Matrix:
    """Select updates by multi-Krum: weight 1 for the selected, 0 for the others.

    The rule is in section 4 of Blanchard et al., NeurIPS 2017,
    https://arxiv.org/abs/1703.02757. The score of an update is the sum of its squared
    distances to the n - f - 2 nearest others. The m updates with the lowest scores are
    selected, here m = n - f; the earlier client wins a tie. The theorem needs
    n > 2 f + 2; with fewer updates at least one neighbour counts. ``products`` holds
    the inner products (n, n), and f is `count_hostile`.
    """
    count = len(products)
    hostile = count_hostile(count, fraction)
    chosen = np.argsort(_scores(products, hostile), kind="stable")[: count - hostile]
    weights = np.zeros(count)
    weights[chosen] = 1.0
    return weights


def _scores(products: Matrix, hostile: int) -> Matrix:
    squares = np.diag(products)
    squared_distances = np.maximum(squares + squares[:, None] - 2 * products, 0.0)
    np.fill_diagonal(squared_distances, np.inf)
    neighbours = max(1, len(products) - hostile - 2)
    nearest = np.sort(squared_distances, axis=1)[:, :neighbours]
    return np.asarray(nearest.sum(1))


def geometric_median_weights(products: Matrix) -> Matrix:
    """Compute weights, summing to 1, whose mean of updates is their geometric median.

    The geometric median minimises the sum of the Euclidean distances to all updates.
    This is algorithm 2 (smoothed Weiszfeld, nu = 1e-6) of Pillutla, Kakade and
    Harchaoui, IEEE TSP 2022, https://arxiv.org/abs/1912.13445, with equal alpha, until
    nothing changes. All its points are means of updates, so that their distances follow
    from the inner products (n, n).
    """
    # Starting from the mean, a distant update would take many steps to lose its weight.
    # So the start is the mean of the updates that multi-Krum selects. It includes all
    # updates with the last selected score. Among several minima the start decides, and
    # it must not depend on the order of the clients.
    hostile = count_hostile(len(products), 0.5)
    scores = _scores(products, hostile)
    last = np.sort(scores)[len(products) - hostile - 1]
    weights: Matrix = (scores <= last * (1 + 1e-9)).astype(np.float64)
    weights /= weights.sum()
    for _ in range(_STEPS):
        to_mean = products @ weights
        squares = weights @ to_mean - 2 * to_mean + np.diag(products)
        distances = np.sqrt(np.maximum(squares, 0.0))
        pull = 1 / np.maximum(distances, _SMOOTHING)
        before, weights = weights, pull / pull.sum()
        if (np.abs(weights - before) <= 1e-9 * weights).all():
            break
    return weights


def _moved(tensor: AnyArray | None, flat: Array, part: slice) -> Matrix:
    moved = np.zeros(part.stop - part.start)
    with np.errstate(over="ignore"):
        if isinstance(tensor, SparseArray):
            first, last = np.searchsorted(tensor.indices, [part.start, part.stop])
            places = tensor.indices[first:last]
            values = tensor.values[first:last].astype(np.float64)
            moved[places - part.start] = values - flat[places]
        elif tensor is not None:
            moved = tensor.reshape(-1)[part].astype(np.float64) - flat[part]
    return np.clip(moved, -_LARGEST, _LARGEST)


def _towards(tensor: AnyArray, old: Array, scale: float) -> AnyArray:
    if tensor.dtype.kind != "f":
        return tensor
    flat = old.reshape(-1)
    nearer = flat + scale * _moved(tensor, flat, slice(0, flat.size))
    nearer = nearer.astype(tensor.dtype)
    if isinstance(tensor, SparseArray):
        return SparseArray(tensor.shape, tensor.indices, nearer[tensor.indices])
    return nearer.reshape(tensor.shape)
