"""A tensor of which only some entries exist: "not sent" is not "zero"."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import WireError


@dataclass(frozen=True, slots=True, eq=False)
class SparseArray:
    """Some entries of a dense tensor, by flat index.

    An entry that is absent carries no information: an adapter reads it as zero,
    a receiver of base parameters leaves its own value alone.

    The constructor trusts its caller; code that decodes received bytes calls
    `validate`.

    Attributes:
        shape: shape of the dense tensor.
        indices: int64, shape (nnz,), strictly increasing flat (C order) indices.
        values: shape (nnz,), any dtype.
    """

    shape: tuple[int, ...]
    indices: npt.NDArray[np.int64]
    values: npt.NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the values."""
        return self.values.dtype

    @property
    def size(self) -> int:
        """Return the number of entries of the dense tensor."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """Return the number of entries present."""
        return len(self.indices)

    @property
    def density(self) -> float:
        """Return the share of entries present, in [0, 1]; 0 for an empty tensor."""
        return self.nnz / self.size if self.size else 0.0

    @classmethod
    def of_mask(
        cls, dense: npt.NDArray[Any], present: npt.NDArray[np.bool_]
    ) -> "SparseArray":
        """Return the entries of ``dense`` where ``present`` (same shape) is true."""
        indices = np.flatnonzero(present)
        return cls(dense.shape, indices, dense.reshape(-1)[indices])

    @classmethod
    def of_nonzero(
        cls, dense: npt.NDArray[Any], threshold: float = 0.0
    ) -> "SparseArray":
        """Return the entries of ``dense`` with magnitude above ``threshold``.

        A NaN is an entry too: dropping it would hide a diverged client from the
        receiver's check for non-finite values.
        """
        # Not np.abs: the smallest int8, -128, has no positive counterpart.
        return cls.of_mask(dense, ~((dense >= -threshold) & (dense <= threshold)))

    @classmethod
    def of_channels(
        cls, dense: npt.NDArray[Any], channels: npt.NDArray[np.int64]
    ) -> "SparseArray":
        """Return whole rows of ``dense`` along axis 0 (output channels).

        Args:
            dense: at least one axis.
            channels: strictly increasing row numbers.
        """
        width = math.prod(dense.shape[1:])
        indices = (channels[:, None] * width + np.arange(width)).reshape(-1)
        return cls(dense.shape, indices, dense[channels].reshape(-1))

    def to_dense(self) -> npt.NDArray[Any]:
        """Return a new dense tensor with zero where no entry is present."""
        flat = np.zeros(self.size, self.values.dtype)
        flat[self.indices] = self.values
        return flat.reshape(self.shape)

    def overwrite(self, dense: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of ``dense`` with the present entries replaced.

        Raises:
            WireError: ``dense`` has another shape, so that flat indices would land
                on the wrong entries without a sound.
        """
        if dense.shape != self.shape:
            raise WireError(
                f"a sparse tensor of shape {self.shape} cannot overwrite"
                f" a tensor of shape {dense.shape}"
            )
        flat = dense.reshape(-1).copy()
        flat[self.indices] = self.values
        return flat.reshape(self.shape)

    def validate(self) -> None:
        """Check that indices and values describe entries of ``shape``.

        Raises:
            WireError: an index is missing, repeated, out of order or out of range.
        """
        if self.indices.dtype != np.int64 or self.indices.ndim != 1:
            raise WireError(
                "indices must be int64 with one axis, not"
                f" {self.indices.dtype} with {self.indices.ndim}"
            )
        if self.values.shape != self.indices.shape:
            raise WireError(
                f"{self.nnz} indices need values of shape ({self.nnz},),"
                f" not {self.values.shape}"
            )
        if not np.all(self.indices[1:] > self.indices[:-1]):
            raise WireError("indices must be strictly increasing")
        if self.nnz and not (self.indices[0] >= 0 and self.indices[-1] < self.size):
            raise WireError(
                f"indices must lie in [0, {self.size}), not in"
                f" [{self.indices[0]}, {self.indices[-1]}]"
            )
