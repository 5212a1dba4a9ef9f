"""The algebra of decomposed weights: theta = B * g(m) + A + sum_j alpha_j A_j.

FedWeIT (Yoon et al., ICML 2021), equations 1 and 2. ``B`` is the base, ``m`` the raw
gate with one value for each output channel (axis 0), ``g`` the gate function. ``A`` is
the task's adapter, and ``alpha_j`` one scalar for each foreign adapter ``A_j`` and
tensor.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.types import Array, SparseArray
from fcl_flower.data.examples import TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.loop import StepSize
from strategies.fedweit import Clustering, FedWeitParams, Gate
from strategies.fedweit.maths import EXACT

Tensors: TypeAlias = dict[str, Tensor]


def gate(raw: Tensor, kind: Gate) -> Tensor:
    """Gate m, shape (channels,): the sigmoid in (0, 1), or ``raw`` for identity."""
    return torch.sigmoid(raw) if kind == "sigmoid" else raw


def by_channel(values: Tensor, weight: Tensor) -> Tensor:
    """Reshape ``values`` (channels,) so that they multiply ``weight`` along axis 0."""
    return values.reshape(-1, *[1] * (weight.dim() - 1))


def compose(base: Tensor, gates: Tensor, adapter: Tensor) -> Tensor:
    """Compose B * g(m) + A, of the shape of ``base``; ``gates`` is (channels,)."""
    return torch.addcmul(adapter, base, by_channel(gates, base))


def soft(values: Tensor, threshold: Tensor) -> Tensor:
    """Apply the soft threshold: the minimiser of (a - v)^2 / 2 + threshold |a|."""
    return values - torch.clamp(values, -threshold, threshold)


def top_channels(gates: Tensor, kappa: float) -> Tensor:
    """Choose the most informative share of the channels, at least one; ascending."""
    count = max(1, round(kappa * len(gates)))
    order = torch.argsort(gates.abs(), descending=True, stable=True)
    return order[:count].sort().values


def rounded(adapter: SparseArray, bits: int) -> SparseArray:
    """Round values to the nearest of 2 ** bits - 1 levels; 32 bits change nothing.

    The levels lie evenly in [-max |A|, max |A|]. Zero is one of them, so small entries
    are pruned. Values that are not finite stay, and the receiver refuses them.

    >>> values = np.array([0.1, -0.26, 0.9, 1.0], np.float32)
    >>> found = rounded(SparseArray.of_nonzero(values), bits=3).to_dense()
    >>> [f"{value:.3f}" for value in found]
    ['0.000', '-0.333', '1.000', '1.000']
    """
    largest = np.abs(adapter.values).max(initial=0)
    if bits == EXACT or not 0 < largest < np.inf:
        return adapter
    step = largest / np.float32(2 ** (bits - 1) - 1)
    values = np.rint(adapter.values / step) * step
    kept = values != 0
    return SparseArray(adapter.shape, adapter.indices[kept], values[kept])


# ---- foreign adapters


def attended(adapters: Tensor, alpha: Tensor) -> Tensor:
    """Compute sum_j alpha_j A_j of adapters (J, *shape) and attention (J,)."""
    return (alpha @ adapters.flatten(1)).view(adapters.shape[1:])


# ---- how old tasks follow the base
#
# For a base that has moved by dB, equation 2 depends on an old adapter only by
#     min over A of  lambda2 ||dB * g + (A - A_old)||^2 + lambda1 |A|_1,
# which separates by entries. With u = A_old - dB * g the minimiser is the soft
# threshold of u, and the minimum is Huber's function of u. So old adapters need no
# optimizer, and the term becomes a function of the base.


def retroactive(
    adapter: Tensor, moved: Tensor, gates: Tensor, lambda1: float, lambda2: float
) -> Tensor:
    """Minimise for the old task's adapter; without the second term it stays."""
    if lambda2 == 0:
        return adapter
    threshold = adapter.new_tensor(lambda1 / (2 * lambda2))
    return soft(compose(moved, -gates, adapter), threshold)


@dataclass(frozen=True, slots=True)
class Followers:
    """The data of old tasks for one weight, as `following_cost` reads them.

    All tasks lie side by side in each channel. So a stretch of channels is read once
    from memory and stays in the processor's cache.
    """

    adapters: Tensor
    """The product 2 lambda2 A_old, shape (channels, tasks, entries of a channel)."""
    gates: Tensor
    """The negated gates -g(m), shape (channels, tasks)."""
    lambda2: float

    @classmethod
    def of(
        cls, adapters: Sequence[Tensor], gates: Sequence[Tensor], lambda2: float
    ) -> Self:
        """Lay out the adapters and gates (channels,) of the old tasks, at least one."""
        together = torch.stack([a.reshape(len(a), -1) for a in adapters], 1)
        return cls(together.mul_(2 * lambda2), -torch.stack([*gates], 1), lambda2)


def following_cost(moved: Tensor, old: Followers, lambda1: float) -> Tensor:
    """Compute the sum of the minima over all old tasks, a scalar.

    Its gradient is equation 2's pull at the base after every old adapter has followed.
    It is -g * clip(2 lambda2 u, -lambda1, lambda1), summed over the tasks. Where old
    adapters are zero it brakes any movement of the base by lambda1 sum_i g_i.
    """
    return cast(Tensor, _FollowingCost.apply(moved, old, lambda1))  # type: ignore[no-untyped-call]


_STRETCH = 200_000
"""The number of entries of all tasks that a processor's cache holds twice."""


class _FollowingCost(torch.autograd.Function):  # one pass: every step pays it
    @staticmethod
    @override
    def forward(ctx: Any, moved: Tensor, old: Followers, lambda1: float) -> Tensor:
        channels, tasks, entries = old.adapters.shape
        gradient, flat = torch.empty_like(moved), moved.reshape(channels, 1, entries)
        by_channel = gradient.view(channels, 1, entries)
        stretch = max(1, _STRETCH // (tasks * entries))
        if moved.device.type != "cpu":
            stretch = channels
        # ``pulls`` is 2 lambda2 u, ``clipped`` the same after clipping.
        shape = min(stretch, channels), tasks, entries
        pulls, clipped = moved.new_empty(shape), moved.new_empty(shape)
        cost = moved.new_zeros(())
        for start in range(0, channels, stretch):
            stop = min(start + stretch, channels)
            u, v = pulls[: stop - start], clipped[: stop - start]
            gates = old.gates[start:stop, :, None]
            adapters, here = old.adapters[start:stop], flat[start:stop]
            torch.addcmul(adapters, here, gates, value=2 * old.lambda2, out=u)
            torch.clamp(u, -lambda1, lambda1, out=v)
            row = v.view(-1)
            cost.add_(row.dot(u.view(-1))).sub_(row.dot(row), alpha=0.5)
            torch.bmm(gates.transpose(1, 2), v, out=by_channel[start:stop])
        ctx.save_for_backward(gradient)
        return cost / (2 * old.lambda2)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None


# ---- a task's model


@dataclass(frozen=True, slots=True)
class OldTask:
    """An old task that the gradient solver trains along."""

    anchors: Tensors
    """The adapters A_i at the end of the previous task."""
    gates: Tensors
    """The gates g(m_i)."""
    adapters: Tensors
    """The present adapters A_i."""


@dataclass(slots=True)
class TaskTensors:
    """The tensors of one task by name.

    They are B, m (raw), A and the tensors that are not decomposed. ``foreign`` is sum_j
    alpha_j A_j where it is settled. Where alpha is still trained, ``others`` has all
    A_j side by side (J, *shape), and ``attention`` is alpha. If this task is trained
    beside old ones, there are ``anchor`` (B at the end of the previous task) and the
    old tasks. These are ``followers``, or ``old`` for the gradient solver.
    """

    base: Tensors
    masks: Tensors
    adapters: Tensors
    private: Tensors
    foreign: Tensors = field(default_factory=dict)
    others: Tensors = field(default_factory=dict)
    attention: Tensors = field(default_factory=dict)
    anchor: Tensors = field(default_factory=dict)
    followers: dict[str, Followers] = field(default_factory=dict)
    old: dict[int, OldTask] = field(default_factory=dict)


class TaskModel:
    """A task's model made of `TaskTensors`, with the leaves that training changes.

    Attributes:
        model: the network; its own tensors are not used.
        tensors: the task's tensors, which this model owns; trained ones have become
            parameters.
        leaves: the parameters by group and name, such as ``masks/body.fc1.weight``.
        rates: factors on the learning rate for some of the leaves.
        sparse: the leaves that `proximal_step` makes sparse, with the weight of |.|_1.
        class_weights: the weights of classes in the loss, shape (classes,); None weighs
            all alike.
    """

    class_weights: Tensor | None = None

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedWeitParams,
        task: int,
        tensors: TaskTensors,
    ) -> None:
        """Turn ``tensors`` into leaves; the head of ``task`` answers."""
        self.model, self.params, self.task = model, params, task
        self.tensors = tensors
        self.leaves: dict[str, nn.Parameter] = {}
        self.rates: dict[str, float] = {}
        self.sparse: dict[str, float] = {}
        closing = params.lambda_mask if params.gate == "identity" else 0.0
        self.add_leaves("base", tensors.base, params.base_rate)
        self.add_leaves("masks", tensors.masks, params.mask_rate, sparsity=closing)
        self.add_leaves("adapters", tensors.adapters, sparsity=params.lambda1)
        self.add_leaves("attention", tensors.attention, params.attention_rate)
        self.add_leaves("heads", tensors.private)
        for t, old in tensors.old.items():
            self.add_leaves(f"old/{t}", old.adapters, sparsity=params.lambda1)

    def add_leaves(
        self, group: str, tensors: Tensors, rate: float = 1.0, sparsity: float = 0.0
    ) -> None:
        """Turn all tensors into leaves, except the statistics of normalisation."""
        buffers = {name for name, _ in self.model.named_buffers()}
        for name in sorted(tensors.keys() - buffers):
            leaf = nn.Parameter(tensors[name])
            tensors[name] = self.leaves[f"{group}/{name}"] = leaf
            if rate != 1.0:
                self.rates[f"{group}/{name}"] = rate
            if sparsity:
                self.sparse[f"{group}/{name}"] = sparsity

    def theta(self, name: str) -> Tensor:
        """Compose one weight (equation 1)."""
        tensors = self.tensors
        gates = gate(tensors.masks[name], self.params.gate)
        theta = compose(tensors.base[name], gates, tensors.adapters[name])
        if name in tensors.others:
            return theta + attended(tensors.others[name], tensors.attention[name])
        return theta + tensors.foreign[name] if name in tensors.foreign else theta

    def weights(self) -> Tensors:
        """Collect all tensors of the network by name, theta where it is decomposed."""
        composed = {name: self.theta(name) for name in self.tensors.base}
        return {**composed, **self.tensors.private}

    def forward(self, x: Tensor) -> Tensor:
        """Compute the task's logits with the composed weights."""
        inputs = x, self.task
        return cast(
            Tensor, torch.func.functional_call(self.model, self.weights(), inputs)
        )

    def prepared(self, data: TaskData) -> TaskData:
        """Convert the examples to the form that `loss` and `logits` take."""
        return data

    def logits(self, x: Tensor) -> Tensor:
        """Compute the task's logits in evaluation mode, without gradients."""
        self.model.eval()
        with torch.no_grad():
            return self.forward(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute equation 2 on a batch, without the terms of `proximal_step`."""
        self.model.train()
        loss = mean_cross_entropy(self.forward(x), y, self.class_weights)
        return loss + self.gate_penalty() + self.drift()

    def gate_penalty(self) -> Tensor | float:
        """Compute lambda_mask |g(m)|_1 of sigmoids, which have a gradient everywhere.

        The gate is to be sparse, not m: |m|_1 would pull a sigmoid to 0.5.
        """
        if self.params.gate != "sigmoid":
            return 0.0
        gates = [gate(m, "sigmoid").sum() for m in self.tensors.masks.values()]
        return self.params.lambda_mask * torch.stack(gates).sum()

    def drift(self) -> Tensor | float:
        """Compute lambda2 sum_i ||dB * g(m_i) + dA_i||^2.

        With the closed solver this is its minimum over the A_i, with their sparsity. It
        depends on B alone; the A_i follow afterwards.
        """
        params, tensors = self.params, self.tensors
        if not (params.lambda2 and (tensors.followers or tensors.old)):
            return 0.0
        costs = []
        for name, base in tensors.base.items():
            moved = base - tensors.anchor[name]
            if tensors.followers:
                cost = following_cost(moved, tensors.followers[name], params.lambda1)
            else:
                parts = [
                    moved * by_channel(task.gates[name], moved)
                    + task.adapters[name]
                    - task.anchors[name]
                    for task in tensors.old.values()
                ]
                cost = params.lambda2 * torch.stack(parts).square().sum()
            costs.append(cost)
        return torch.stack(costs).sum()

    def proximal_step(self, step_size: StepSize) -> None:
        """Take the proximal step of lambda_mask |m|_1 + lambda1 sum_i |A_i|_1.

        It follows the optimizer's step and uses its metric (Yun et al., Adaptive
        proximal gradient methods, NeurIPS 2021). If the optimizer moved by s times the
        mean gradient, the soft threshold is s lambda1. So training rests where equation
        2 has its minimum, at exact zeros too. Plain gradient descent has the threshold
        rate times lambda1. With it Adam would weigh lambda1 by the noise of each entry.
        """
        with torch.no_grad():
            for name, weight in self.sparse.items():
                leaf = self.leaves[name]
                if leaf.grad is not None:  # None: the network does not use it
                    threshold = step_size(name).mul_(weight)
                    leaf.sub_(torch.clamp(leaf, -threshold, threshold))


# ---- a client's summary of a task before it begins (FedSeIT, section 2.3)


def centres(
    documents: Array, count: int, kind: Clustering, members: int, seed: int
) -> Array:
    """Compute normalised cluster centres, shape (at most ``count``, D).

    A centre stands for at least ``members`` documents, since a smaller cluster would
    show them. So a small task gets fewer clusters. The documents of a cluster that
    stays too small go to the nearest large one. Without enough documents for a single
    cluster there is no centre. Equal documents count once, since many copies of one
    would show it too.
    """
    documents = np.unique(documents, axis=0)
    count = min(count, len(documents) // members)
    if not count:
        return np.zeros((0, documents.shape[1]), np.float32)
    labels = cluster_labels(documents.astype(np.float64), count, kind, seed)
    # There is at least one: count * members documents cannot all lie in smaller ones.
    large = np.flatnonzero(np.bincount(labels) >= members)
    means_of_large = np.stack([documents[labels == n].mean(0) for n in large])
    small = ~np.isin(labels, large)
    if small.any():
        from scipy.spatial.distance import cdist  # a slow import, as below

        labels[small] = large[cdist(documents[small], means_of_large).argmin(1)]
    means = np.stack([documents[labels == n].mean(0) for n in large])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return (means / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def cluster_labels(documents: Array, count: int, kind: Clustering, seed: int) -> Array:
    """Cluster documents, at least one; return their labels, shape (N,)."""
    if count == 1:
        # One cluster needs no fit, and scikit-learn refuses a mixture of one document.
        return np.zeros(len(documents), np.int64)
    # The import takes a second, and most learners do not need it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    # NumPy's older generator takes seeds of 32 bits.
    seed %= 2**32
    model = (
        KMeans(count, n_init=1, random_state=seed)
        if kind == "k-means"
        else GaussianMixture(count, covariance_type="diag", random_state=seed)
    )
    with warnings.catch_warnings():
        # Clusters that have not converged, or are fewer, are still usable.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit_predict(documents))
