"""What equation 2 says of old tasks once the base is given, against brute force."""

import numpy as np
import pytest
import torch

from clients.fedweit.maths import compose, following_cost, retroactive

GRID = np.linspace(-6, 6, 120_001)
LAMBDA2 = 0.7


def drawn(seed=0):
    """Return dB, and A_old and gates of two tasks."""
    rng = np.random.default_rng(seed)
    moved, *old = (torch.tensor(rng.normal(size=(3, 2))) for _ in range(3))
    return moved, [(adapter, torch.tensor(rng.uniform(size=3))) for adapter in old]


def costs(adapter, moved, gates, lambda1):
    """Return what each value of the grid costs as each entry of A: (3, 2, grid)."""
    drift = (moved * gates[:, None] - adapter).numpy()[..., None] + GRID
    return LAMBDA2 * drift**2 + lambda1 * np.abs(GRID)


@pytest.mark.parametrize("lambda1", [0.0, 0.02, 0.3])
def test_the_closed_form_is_the_best_adapter_on_a_fine_grid(lambda1):
    moved, [(adapter, gates), _] = drawn()
    found = retroactive(adapter, moved, gates, lambda1, LAMBDA2)
    best = GRID[costs(adapter, moved, gates, lambda1).argmin(-1)]
    np.testing.assert_allclose(found, best, atol=2e-4)


@pytest.mark.parametrize("lambda1", [0.0, 0.02, 0.3, 5.0])
def test_the_cost_of_following_is_the_least_on_a_fine_grid(lambda1):
    moved, old = drawn()
    anchor = torch.ones_like(moved)
    found = following_cost(anchor + moved, anchor, old, lambda1, LAMBDA2)
    best = sum(costs(a, moved, g, lambda1).min(-1).sum() for a, g in old)
    assert float(found) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("lambda1", [0.02, 0.3, 5.0])
def test_the_pull_at_the_base_is_the_slope_of_that_cost(lambda1):
    moved, old = drawn()
    base = moved.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda b: following_cost(b, torch.zeros_like(b), old, lambda1, LAMBDA2), base
    )
    (3 * following_cost(base, torch.zeros_like(base), old, lambda1, LAMBDA2)).backward()
    bound = 3 * lambda1 * sum(gates for _, gates in old)[:, None]
    assert (base.grad.abs() <= bound + 1e-12).all()
    assert base.grad.abs().max() > 0.02


def test_empty_old_adapters_brake_the_base_by_their_gates():
    """Beyond lambda1 / (2 lambda2) each is worth lambda1 g an entry."""
    base = torch.tensor([[0.5, -0.5], [0.0, 1e-6]], requires_grad=True)
    gates = torch.tensor([1.0, 0.25]), torch.tensor([0.5, 0.25])
    old = [(torch.zeros(2, 2), g) for g in gates]
    following_cost(base, torch.zeros(2, 2), old, 0.1, 2.0).backward()
    slope = 2 * 2.0 * 1e-6 * (0.25**2 + 0.25**2)
    expected = torch.tensor([[0.15, -0.15], [0.0, slope]])
    torch.testing.assert_close(base.grad, expected)


def test_without_the_second_term_an_old_adapter_stays():
    old = torch.tensor([[1.0, -2.0]])
    found = retroactive(old, torch.ones(1, 2), torch.ones(1), 0.1, 0.0)
    assert torch.equal(found, old)


def test_an_old_tasks_weight_stays_when_the_base_moves():
    """Without sparsity theta_i = B g + A is exactly what it was."""
    rng = np.random.default_rng(1)
    base, moved, old = (torch.tensor(rng.normal(size=(4, 3))) for _ in range(3))
    gates = torch.tensor(rng.uniform(size=4))
    before = compose(base, gates, old)
    followed = retroactive(old, moved, gates, 0.0, 100.0)
    torch.testing.assert_close(compose(base + moved, gates, followed), before)
