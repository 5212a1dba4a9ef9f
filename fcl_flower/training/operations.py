"""Multiply-adds: how much PyTorch computes, whatever it computes on."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

T = TypeVar("T")
Shape = tuple[int, ...]


def multiply_adds(call: Callable[[], T]) -> tuple[T, int]:
    """Return what a call returns, and the multiply-adds of PyTorch within it.

    Those of matrix products, convolutions and attention, forward and backward, one for
    a product and its sum; all else that networks do is small beside them. Each
    operation is looked at, which takes some milliseconds a training step, and changes
    no result.

    Args:
        call: what is counted.
    """
    with FlopCounterMode(display=False, custom_mapping=_ON_A_CPU) as counter:
        found = call()
    return found, counter.get_total_flops() // 2


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:  # noqa: ANN401
    flops: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flops


def _attention_backward(
    grad: Shape,
    query: Shape,
    key: Shape,
    value: Shape,
    *_: Any,  # noqa: ANN401
    **__: Any,  # noqa: ANN401
) -> int:
    flops: int = sdpa_backward_flop_count(  # type: ignore[no-untyped-call]
        grad, query, key, value
    )
    return flops


_ATEN = torch.ops.aten
_ON_A_CPU = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Fused attention on a CPU, which PyTorch's counter does not know."""
