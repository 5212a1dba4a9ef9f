"""Where models lie relative to each other, without a matrix of all their weights.

Whatever looks only at Euclidean distances between N models of P weights can work on
N points of at most N - 1 coordinates: those of classical scaling (Torgerson 1952),
which come from the N x N Gram matrix. For many models the Gram matrix may be that of
count sketches (Charikar, Chen, Farach-Colton, ICALP 2002), known as feature hashing
(Weinberger et al., ICML 2009, https://arxiv.org/abs/0902.2206).

Only floating tensors count: BatchNorm's counters say nothing about a concept.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from fcl_flower.core.types import Array, Arrays
from strategies.concept_matching import Metric

Matrix: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]

APART = 2.0
"""Distance of two starts in units of a step: that of opposite steps from one start."""

_CELLS = 2**21
_METRICS = {
    "manhattan": ("cityblock", np.add),
    "euclidean": ("sqeuclidean", np.add),
    "chebyshev": ("chebyshev", np.maximum),
}


def gram(models: Sequence[Arrays]) -> Matrix:
    """Return the inner products of the models after their mean has been taken away.

    Models of one concept may differ a thousand times less than those of two, which is
    a factor of a million in squares: products are float64, not float32.

    Args:
        models: N of the same names and shapes, at least one; dense.

    Returns:
        Shape (N, N), symmetric; rows sum to zero.
    """
    total = np.zeros((len(models), len(models)))
    for block in _blocks(models):
        block -= block[:1].copy()  # of equal models nothing is left, not even rounding
        total += block @ block.T
    return _centred(total)


def gram_of_directions(
    models: Sequence[Arrays], starts: Sequence[Arrays], origin: Labels
) -> Matrix:
    """Return the inner products of the models' steps, each brought to length 1.

    How far two starts lie apart says no more about the concepts than how long a step
    is: they count as `APART`, whichever they are. In these units models are points of
    the unit steps' coordinates and one of K more, sqrt(2) for the own start and else 0.

    Args:
        models: N of the same names and shapes, at least one; dense.
        starts: K like them, at least one.
        origin: shape (N,), the number of the start of each model.

    Returns:
        Shape (N, N), symmetric; rows sum to zero. A model that did not move has no
        direction, and lies where it started.
    """
    count = len(models)
    total = np.zeros((count, count))
    for block in _blocks([*models, *starts]):
        steps = block[:count] - block[count:][origin]
        total += steps @ steps.T
    lengths = np.sqrt(total.diagonal())
    scales = np.divide(1, lengths, out=np.zeros(count), where=lengths > 0)
    together = origin[:, None] == origin
    return _centred(total * np.outer(scales, scales) + APART**2 / 2 * together)


def sketched(models: Sequence[Arrays], buckets: int, seed: int) -> list[Arrays]:
    """Return count sketches of the models; a linear map, the same for each.

    Each weight is added to, or taken from, one of the buckets at random. The squared
    distance of two sketches has that of their models as its mean, with a relative
    standard deviation of at most sqrt(2 / buckets): 2.2 % for 4096 buckets.

    Args:
        models: N of the same names and shapes, at least one; dense.
        buckets: length of a sketch.
        seed: of the hash; sketches of different seeds cannot be compared.

    Returns:
        N times one tensor, ``sketch``: float64, shape (buckets,).
    """
    rng = np.random.default_rng(seed)
    sketches = np.zeros((len(models), buckets))
    for parts in _stretches(models, _CELLS):
        # The upper half of the cells are the buckets with a negative sign.
        cells = rng.integers(0, 2 * buckets, len(parts[0]))
        for sketch, part in zip(sketches, parts, strict=True):
            sums = np.bincount(cells, weights=part, minlength=2 * buckets)
            sketch += sums[:buckets] - sums[buckets:]
    return [{"sketch": sketch} for sketch in sketches]


def embedding(gram: Matrix) -> Matrix:
    """Return points with the distances of the models whose Gram matrix this is.

    Distances below about 1e-7 of the largest are lost in the rounding of a product.

    Args:
        gram: shape (N, N), of centred models.

    Returns:
        Shape (N, r), r < N: the principal coordinates, widest first; in each the
        entry of largest magnitude is positive.
    """
    values, vectors = np.linalg.eigh(gram)
    # Rounding leaves small eigenvalues of either sign where there is no direction.
    real = values > max(values[-1], 0) * len(gram) * np.finfo(np.float64).eps
    points = (vectors[:, real] * np.sqrt(values[real]))[:, ::-1]
    largest = np.abs(points).argmax(axis=0)
    flipped: Matrix = points * np.sign(points[largest, np.arange(points.shape[1])])
    return flipped


def distances(
    models: Sequence[Arrays], others: Sequence[Arrays], metric: Metric
) -> Matrix:
    """Return how far each model is from each of the others.

    Args:
        models: J of the same names and shapes; may be empty.
        others: K like them, at least one.
        metric: Manhattan (sum of differences), Euclidean or Chebyshev (the largest).

    Returns:
        Shape (J, K), float64, in units of the weights.
    """
    name, join = _METRICS[metric]
    total = np.zeros((len(models), len(others)))
    for block in _blocks([*models, *others]):
        part = cdist(block[: len(models)], block[len(models) :], name)
        join(total, part, out=total)
    return np.sqrt(total) if metric == "euclidean" else total


def _centred(products: Matrix) -> Matrix:
    """Return inner products after the mean of the vectors has been taken away."""
    mean = products.mean(axis=0)
    centred: Matrix = products - mean - mean[:, None] + mean.mean()
    return centred


def _stretches(models: Sequence[Arrays], width: int) -> Iterator[list[Array]]:
    """Yield a list of N vectors for each stretch of at most ``width`` weights."""
    for name, tensor in models[0].items():
        if tensor.dtype.kind == "f":
            flat = [np.asarray(model[name]).reshape(-1) for model in models]
            for start in range(0, len(flat[0]), width):
                yield [values[start : start + width] for values in flat]


def _blocks(models: Sequence[Arrays]) -> Iterator[Matrix]:
    """Yield stretches of weights, (N, width); a block is overwritten by the next."""
    width = max(1, _CELLS // len(models))
    room = np.empty(len(models) * width)
    for parts in _stretches(models, width):
        block = room[: len(models) * len(parts[0])].reshape(len(models), -1)
        yield np.stack(parts, out=block)
