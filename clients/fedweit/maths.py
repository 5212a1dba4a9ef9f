"""The algebra of decomposed weights: theta = B * g(m) + A + sum_j alpha_j A_j.

FedWeIT (Yoon et al., ICML 2021), equations 1 and 2. ``B`` is the base, ``m`` the raw
gate with one value per output channel (axis 0), ``g`` the gate function, ``A`` the
task's adapter, ``alpha_j`` one scalar per foreign adapter ``A_j`` and tensor.

Foreign adapters: sum_j alpha_j A_j and the gradient of alpha, sparsely.

The last term of FedWeIT's equation 1 (Yoon et al., ICML 2021).

How tasks of the past follow the base: the last term of equation 2, in closed form.

FedWeIT (Yoon et al., ICML 2021), equation 2. Given how far the base has moved, dB, all
that it says of an old task's adapter is

    min over A of  lambda2 ||dB * g + (A - A_old)||^2 + lambda1 |A|_1,

which separates by entries: with u = A_old - dB * g the minimiser is the soft threshold
of u, and the minimum is Huber's function of u. So old adapters need no optimizer; what
is left of the term is a function of the base.

What a client tells of a task before it begins, for Selective Inter-client Transfer.

Chaudhary et al., Findings of EMNLP 2022, section 2.3: documents as mean word vectors,
clustered. The mean of all pairwise cosines of two tasks' centres is the inner product
of the two means of their normalised centres, so that one vector says all of it.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.core.types import Array, Payload, SparseArray
from strategies.fedweit import Clustering, Gate


def gate(raw: Tensor, kind: Gate) -> Tensor:
    """Gate m, shape (channels,): in (0, 1) for a sigmoid, ``raw`` for identity."""
    return torch.sigmoid(raw) if kind == "sigmoid" else raw


def by_channel(values: Tensor, weight: Tensor) -> Tensor:
    """Shape ``values`` (channels,) to multiply ``weight`` along axis 0."""
    return values.reshape(-1, *[1] * (weight.dim() - 1))


def compose(
    base: Tensor, gates: Tensor, adapter: Tensor, foreign: Tensor | None = None
) -> Tensor:
    """Compose theta (equation 1), of the shape of ``base``.

    Args:
        base: B, any shape with output channels on axis 0.
        gates: g(m), shape (channels,).
        adapter: A, of the shape of ``base``.
        foreign: sum of alpha_j A_j, of the shape of ``base``; None for zero.
    """
    theta = torch.addcmul(adapter, base, by_channel(gates, base))
    return theta if foreign is None else theta + foreign


def soft(values: Tensor, threshold: Tensor) -> Tensor:
    """Apply the soft threshold: the minimiser of (a - v)^2 / 2 + threshold |a|.

    Args:
        values: v, any shape.
        threshold: at least 0, of the same shape or a scalar.
    """
    return values - torch.clamp(values, -threshold, threshold)


def top_channels(gates: Tensor, share: float) -> Tensor:
    """Choose the most informative channels (top kappa), ascending.

    Args:
        gates: g(m), shape (channels,).
        share: kappa in (0, 1]; at least one channel is returned.
    """
    count = max(1, round(share * len(gates)))
    order = torch.argsort(gates.abs(), descending=True, stable=True)
    return order[:count].sort().values


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
        """Compute sum_j alpha_j A_j, dense; differentiable in ``alpha`` (adapters,)."""
        return cast(Tensor, _WeightedSum.apply(alpha, self))  # type: ignore[no-untyped-call]

    def combine(self, alpha: Array) -> Array:
        """Compute the same without gradient, NumPy to NumPy."""
        return np.asarray(self._matrix.T @ alpha).reshape(self.shape)

    def project(self, direction: Array) -> Array:
        """Compute <direction, A_j> for each j: the gradient of alpha."""
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


Learned: TypeAlias = tuple[Payload, dict[str, float], float]
"""State and metrics after a round of training, and the loss in validation."""
Tried: TypeAlias = Callable[[Collection[str]], Learned]
"""Trains the first round of a task with the adapters of some clients alone."""


def drop_harmful_senders(tried: Tried, others: Sequence[str]) -> Learned:
    """Train the first round of a task without adapters that harm.

    Where those of all others validate worse than none, each sender's are tried by
    themselves, and together those that validate better than none.

    Args:
        tried: trains.
        others: whose adapters came, in one order.
    """
    whole = tried(others)
    if not others:
        return whole
    best = without = tried(())
    if not _loss(without) < _loss(whole):
        return whole
    helpful = []
    for one in others if len(others) > 1 else ():
        alone = tried([one])
        if _loss(alone) < _loss(without):
            helpful.append(one)
        best = min(best, alone, key=_loss)
    if 1 < len(helpful) < len(others):
        best = min(best, tried(helpful), key=_loss)
    return best


def _loss(learned: Learned) -> float:
    return learned[-1]


def retroactive(
    adapter: Tensor, moved: Tensor, gates: Tensor, lambda1: float, lambda2: float
) -> Tensor:
    """Minimise for the old task's adapter that follows the base.

    Without the second term (lambda2 = 0) the old adapter stays.

    Args:
        adapter: A_old, at the end of the previous task.
        moved: dB, the base now minus the base then.
        gates: g(m) of the old task, shape (channels,).
        lambda1: weight of sparsity, at least 0.
        lambda2: weight of staying where the old task's weights were, at least 0.
    """
    if lambda2 == 0:
        return adapter
    threshold = adapter.new_tensor(lambda1 / (2 * lambda2))
    return soft(_followed(adapter, moved, gates), threshold)


def following_cost(
    base: Tensor,
    anchor: Tensor,
    old: Sequence[tuple[Tensor, Tensor]],
    lambda1: float,
    lambda2: float,
) -> Tensor:
    """Compute the sum of the minima over the old tasks, a scalar.

    Its gradient is what equation 2 pulls at the base with when every old adapter has
    followed: -g * clip(2 lambda2 u, -lambda1, lambda1) summed over the tasks. Where
    old adapters are zero it brakes any movement of the base by lambda1 sum_i g_i.

    Args:
        base: B, differentiable.
        anchor: B at the end of the previous task.
        old: A_old and g(m), shape (channels,), of each task of the past.
        lambda1: weight of sparsity, at least 0.
        lambda2: weight of staying where the old task's weights were, above 0.
    """
    found = _FollowingCost.apply(base, anchor, old, lambda1, lambda2)  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


class _FollowingCost(torch.autograd.Function):
    """In one pass, since a step pays it for every old task."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        base: Tensor,
        anchor: Tensor,
        old: Sequence[tuple[Tensor, Tensor]],
        lambda1: float,
        lambda2: float,
    ) -> Tensor:
        moved = base - anchor
        cost, gradient = base.new_zeros(()), torch.zeros_like(base)
        for adapter, gates in old:
            followed = _followed(adapter, moved, gates)
            bounded = (2 * lambda2 * followed).clamp_(-lambda1, lambda1)
            u, bound = followed.flatten(), bounded.flatten()
            cost += bound.dot(u) - bound.dot(bound) / (4 * lambda2)
            gradient.addcmul_(bounded, by_channel(gates, base), value=-1)
        ctx.save_for_backward(gradient)
        return cost

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None, None


def _followed(adapter: Tensor, moved: Tensor, gates: Tensor) -> Tensor:
    """Compute u: the adapter with which the old task's weights stay as they were."""
    return torch.addcmul(adapter, moved, by_channel(gates, moved), value=-1)


def centres(
    documents: Array, count: int, kind: Clustering, members: int, seed: int
) -> Array:
    """Compute normalised cluster centres, shape (at most ``count``, D).

    No centre stands for fewer than ``members`` documents, since it would show them:
    a small task gets fewer clusters, and the documents of a cluster that stays too
    small go to the nearest one that does not. Without enough documents for a single
    cluster there is no centre. Equal documents count once, since many copies of one
    would show it too.

    Args:
        documents: shape (N, D).
        count: Q, at least 1.
        kind: how documents are clustered.
        members: at least 1.
        seed: of the clustering.
    """
    documents = np.unique(documents, axis=0)
    count = min(count, len(documents) // members)
    if not count:
        return np.zeros((0, documents.shape[1]), np.float32)
    labels = cluster_labels(documents.astype(np.float64), count, kind, seed)
    # At least one: count * members documents cannot all lie in smaller clusters.
    large = np.flatnonzero(np.bincount(labels) >= members)
    found = np.stack([documents[labels == n].mean(0) for n in large])
    small = ~np.isin(labels, large)
    if small.any():
        from scipy.spatial.distance import cdist  # as below

        labels[small] = large[cdist(documents[small], found).argmin(1)]
    means = np.stack([documents[labels == n].mean(0) for n in large])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return (means / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def cluster_labels(documents: Array, count: int, kind: Clustering, seed: int) -> Array:
    """Cluster documents, at least one; labels of shape (N,)."""
    if count == 1:
        # Nothing to find, and scikit-learn refuses a mixture over one document.
        return np.zeros(len(documents), np.int64)
    # Imported here since it takes a second, and most learners do without.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # NumPy's older generator takes 32 bits.
    seed %= 2**32
    model = (
        KMeans(count, n_init=1, random_state=seed)
        if kind == "k-means"
        else GaussianMixture(count, covariance_type="diag", random_state=seed)
    )
    with warnings.catch_warnings():
        # Clusters that have not settled, or are fewer, are still clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit_predict(documents))
