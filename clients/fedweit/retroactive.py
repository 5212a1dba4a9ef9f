"""How tasks of the past follow the base: the last term of equation 2, in closed form.

FedWeIT (Yoon et al., ICML 2021), equation 2. Given how far the base has moved, dB, all
that it says of an old task's adapter is

    min over A of  lambda2 ||dB * g + (A - A_old)||^2 + lambda1 |A|_1,

which separates by entries: with u = A_old - dB * g the minimiser is the soft threshold
of u, and the minimum is Huber's function of u. So old adapters need no optimizer; what
is left of the term is a function of the base.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from clients.fedweit.equations import by_channel, soft


def retroactive(
    adapter: Tensor, moved: Tensor, gates: Tensor, lambda1: float, lambda2: float
) -> Tensor:
    """Return the old task's adapter that follows the base: the minimiser.

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
    """Return the sum of the minima over the old tasks, a scalar.

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
    """Return u: the adapter with which the old task's weights stay as they were."""
    return torch.addcmul(adapter, moved, by_channel(gates, moved), value=-1)
