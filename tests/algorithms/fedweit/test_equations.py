"""The algebra of FedWeIT against NumPy and numbers worked out by hand."""

import numpy as np
import pytest
import torch

from clients.fedweit.maths import (
    ForeignBank,
    by_channel,
    compose,
    gate,
    soft,
    top_channels,
)
from fcl_flower.core.types import SparseArray


def test_theta_is_gated_base_plus_adapter_plus_weighted_foreign_adapters():
    base = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    gates = torch.tensor([0.5, 2.0])
    adapter = torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    foreign = torch.tensor([[0.0, 1.0], [1.0, 0.0]])

    theta = compose(base, gates, adapter, foreign)

    # Row 0: 0.5 * (1, 2) + (10, 0) + (0, 1). Row 1: 2 * (3, 4) + (0, 10) + (1, 0).
    assert theta.tolist() == [[10.5, 2.0], [7.0, 18.0]]


def test_a_gate_multiplies_a_whole_output_channel_of_a_convolution():
    base = torch.ones(2, 3, 5, 5)
    theta = compose(base, torch.tensor([0.25, 4.0]), torch.zeros_like(base))
    assert theta[0].unique().tolist() == [0.25]
    assert theta[1].unique().tolist() == [4.0]


def test_gates_are_sigmoid_or_the_raw_value():
    raw = torch.tensor([0.0, np.log(3.0)], dtype=torch.float64)
    assert gate(raw, "sigmoid").tolist() == pytest.approx([0.5, 0.75])
    assert gate(raw, "identity") is raw


def test_the_mask_receives_the_gradient_of_the_task():
    base = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    raw = torch.tensor([0.0, 0.0], requires_grad=True)
    adapter = torch.zeros(2, 2)
    x = torch.tensor([1.0, 1.0])

    (compose(base, gate(raw, "sigmoid"), adapter) @ x).sum().backward()

    # d(sum theta x)/d m = g'(m) * sum_k B_k x_k with g'(0) = 1/4: 3/4 and 7/4.
    assert raw.grad.tolist() == pytest.approx([0.75, 1.75])


def test_soft_threshold_by_hand():
    values = torch.tensor([-3.0, -1.0, 0.5, 2.0])
    assert soft(values, torch.tensor(1.0)).tolist() == [-2.0, 0.0, 0.0, 1.0]
    each = torch.tensor([2.0, 0.0, 0.25, 3.0])
    assert soft(values, each).tolist() == [-1.0, -1.0, 0.25, 0.0]


def test_top_channels_are_those_with_the_largest_gates():
    gates = torch.tensor([0.1, 0.9, -0.95, 0.2, 0.8])
    assert top_channels(gates, 0.4).tolist() == [1, 2]
    assert top_channels(gates, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert top_channels(gates, 0.01).tolist() == [2]


def test_equal_gates_give_the_same_channels_everywhere():
    assert top_channels(torch.full((10,), 0.5), 0.3).tolist() == [0, 1, 2]


def test_by_channel_broadcasts_along_the_first_axis():
    assert by_channel(torch.arange(3), torch.zeros(3, 4, 5)).shape == (3, 1, 1)


def banked(seed=0, count=4, shape=(5, 3, 2), density=0.3):
    rng = np.random.default_rng(seed)
    dense = [
        np.where(rng.random(shape) < density, rng.normal(size=shape), 0).astype(
            np.float32
        )
        for _ in range(count)
    ]
    return dense, ForeignBank([SparseArray.of_nonzero(a) for a in dense])


def test_the_bank_gives_the_plain_weighted_sum():
    dense, bank = banked()
    alpha = torch.tensor([0.5, -1.0, 2.0, 0.25])
    plain = sum(a * d for a, d in zip(alpha.tolist(), dense, strict=True))
    torch.testing.assert_close(bank.weighted(alpha), torch.from_numpy(plain))
    assert len(bank) == 4


def test_the_banks_gradient_of_alpha_equals_autograds_through_the_plain_sum():
    dense, bank = banked(seed=3)
    direction = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0))
    fast = torch.tensor([0.5, -1.0, 2.0, 0.25], requires_grad=True)
    plain = fast.detach().clone().requires_grad_()

    (bank.weighted(fast).tanh() * direction).sum().backward()
    stacked = torch.from_numpy(np.stack(dense))
    (torch.tensordot(plain, stacked, 1).tanh() * direction).sum().backward()

    torch.testing.assert_close(fast.grad, plain.grad)


def test_an_empty_adapter_takes_part_with_zero():
    empty = SparseArray.of_nonzero(np.zeros((2, 2), np.float32))
    bank = ForeignBank([empty])
    alpha = torch.ones(1, requires_grad=True)
    bank.weighted(alpha).sum().backward()
    assert bank.weighted(alpha).abs().sum() == 0
    assert alpha.grad.tolist() == [0.0]
