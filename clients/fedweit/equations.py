"""The algebra of decomposed weights: theta = B * g(m) + A + sum_j alpha_j A_j.

FedWeIT (Yoon et al., ICML 2021), equations 1 and 2. ``B`` is the base, ``m`` the raw
gate with one value per output channel (axis 0), ``g`` the gate function, ``A`` the
task's adapter, ``alpha_j`` one scalar per foreign adapter ``A_j`` and tensor.
"""

import torch
from torch import Tensor

from strategies.fedweit import Gate


def gate(raw: Tensor, kind: Gate) -> Tensor:
    """Return g(m), shape (channels,): in (0, 1) for a sigmoid, ``raw`` for identity."""
    return torch.sigmoid(raw) if kind == "sigmoid" else raw


def by_channel(values: Tensor, weight: Tensor) -> Tensor:
    """Return ``values`` (channels,) shaped to multiply ``weight`` along axis 0."""
    return values.reshape(-1, *[1] * (weight.dim() - 1))


def compose(
    base: Tensor, gates: Tensor, adapter: Tensor, foreign: Tensor | None = None
) -> Tensor:
    """Return theta (equation 1), of the shape of ``base``.

    Args:
        base: B, any shape with output channels on axis 0.
        gates: g(m), shape (channels,).
        adapter: A, of the shape of ``base``.
        foreign: sum of alpha_j A_j, of the shape of ``base``; None for zero.
    """
    theta = torch.addcmul(adapter, base, by_channel(gates, base))
    return theta if foreign is None else theta + foreign


def soft(values: Tensor, threshold: Tensor) -> Tensor:
    """Return the soft threshold: the minimiser of (a - v)^2 / 2 + threshold |a|.

    Args:
        values: v, any shape.
        threshold: at least 0, of the same shape or a scalar.
    """
    return values - torch.clamp(values, -threshold, threshold)


def top_channels(gates: Tensor, share: float) -> Tensor:
    """Return the ascending numbers of the most informative channels (top kappa).

    Args:
        gates: g(m), shape (channels,).
        share: kappa in (0, 1]; at least one channel is returned.
    """
    count = max(1, round(share * len(gates)))
    order = torch.argsort(gates.abs(), descending=True, stable=True)
    return order[:count].sort().values
