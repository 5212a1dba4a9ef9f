"""A random sketch of many vectors, a few of them at a time.

Halko et al., SIAM Review 2011, https://arxiv.org/abs/0909.4061: of ``A R`` with random
R the left singular vectors are nearly those of A, shape (inputs, samples).
"""

import numpy as np

from fcl_flower.core.types import Array


class Sketch:
    """``(A - U U^T A) R / sqrt(samples * columns)``; of A only some are seen at once.

    R is standard normal, so that the squares of a sketch are about the mean square of
    what of a sample is outside of U: it does not grow with their number.
    """

    def __init__(self, basis: Array, columns: int) -> None:
        """Begin without any sample.

        Args:
            basis: U, shape (inputs, directions), orthonormal.
            columns: of the sketch, at least 1.
        """
        self._basis = np.asarray(basis, np.float64)
        self._sum = np.zeros((len(basis), columns))
        self._samples = 0
        self._squares = 0.0
        self._outside = 0.0

    def add(self, inputs: Array, rng: np.random.Generator) -> None:
        """Take up some samples, shape (inputs, samples), with their rows of R."""
        found = np.asarray(inputs, np.float64)
        outside = found - self._basis @ (self._basis.T @ found)
        self._sum += outside @ rng.standard_normal((found.shape[1], self.columns))
        self._samples += found.shape[1]
        self._squares += float(np.square(found).sum())
        self._outside += float(np.square(outside).sum())

    @property
    def columns(self) -> int:
        """Return how many columns it has."""
        return int(self._sum.shape[1])

    @property
    def values(self) -> Array:
        """Return it, float32, shape (inputs, columns); without samples zeros."""
        scale = np.sqrt(max(self._samples, 1) * self.columns)
        return np.asarray(self._sum / scale, np.float32)

    @property
    def outside(self) -> Array:
        """Return ``|A - U U^T A|^2 / |A|^2``, float32; 0 where A is."""
        share = self._outside / self._squares if self._squares else 0.0
        return np.asarray(min(share, 1.0), np.float32)
