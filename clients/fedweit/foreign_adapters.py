"""Foreign adapters: sum_j alpha_j A_j and the gradient of alpha, sparsely.

The last term of FedWeIT's equation 1 (Yoon et al., ICML 2021).
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.core.types import Array, SparseArray


class ForeignBank:
    """The foreign adapters of one tensor, constant during a task.

    They are kept as one sparse matrix (adapters x entries), so that a step costs as
    much as they have entries: the sum is a sparse product with alpha, and alpha's
    gradient is the product with the transposed matrix.
    """

    def __init__(self, adapters: Sequence[SparseArray]) -> None:
        """Keep ``adapters``: at least one, all of the same shape."""
        # Imported here since it takes a third of a second, and first tasks do without.
        from scipy import sparse

        self.shape = adapters[0].shape
        starts = np.cumsum([0, *(a.nnz for a in adapters)])
        self._matrix = sparse.csr_matrix(
            (
                np.concatenate([a.values for a in adapters]),
                np.concatenate([a.indices for a in adapters]),
                starts,
            ),
            shape=(len(adapters), adapters[0].size),
        )

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def weighted(self, alpha: Tensor) -> Tensor:
        """Return sum_j alpha_j A_j, dense; differentiable in ``alpha`` (adapters,)."""
        return cast(Tensor, _WeightedSum.apply(alpha, self))  # type: ignore[no-untyped-call]

    def combine(self, alpha: Array) -> Array:
        """Return the same without gradient, NumPy to NumPy."""
        return np.asarray(self._matrix.T @ alpha).reshape(self.shape)

    def project(self, direction: Array) -> Array:
        """Return <direction, A_j> for each j: the gradient of alpha."""
        return np.asarray(self._matrix @ direction.reshape(-1))


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, alpha: Tensor, bank: ForeignBank) -> Tensor:
        ctx.bank = bank
        ctx.device = alpha.device
        total = bank.combine(alpha.detach().cpu().numpy())
        return torch.from_numpy(total).to(alpha.device)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        direction = gradients[0].cpu().contiguous().numpy()
        return torch.from_numpy(ctx.bank.project(direction)).to(ctx.device), None
