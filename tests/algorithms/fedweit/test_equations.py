"""FedWeIT's equations against NumPy, brute force and numbers worked out by hand."""

import numpy as np
import pytest
import torch
from fedweit_cases import W, data, random_workspace, sigmoid

from clients.fedweit.maths import (
    Followers,
    attended,
    compose,
    following_cost,
    gate,
    retroactive,
    soft,
    top_channels,
)
from fcl_flower.data.examples import Examples
from fcl_flower.training.loop import Fit, Score, Training, fit
from fcl_flower.training.optimizers import OptimizerChoice

ADAM = OptimizerChoice()
LAMBDA2 = 0.7


def test_theta_is_gated_base_plus_adapter():
    base = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    adapter = torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    theta = compose(base, torch.tensor([0.5, 2.0]), adapter)
    # Row 0: 0.5 * (1, 2) + (10, 0). Row 1: 2 * (3, 4) + (0, 10).
    assert theta.tolist() == [[10.5, 1.0], [6.0, 18.0]]
    kernels = torch.ones(2, 3, 5, 5)
    theta = compose(kernels, torch.tensor([0.25, 4.0]), torch.zeros_like(kernels))
    assert [channel.unique().tolist() for channel in theta] == [[0.25], [4.0]]


def test_gates_are_sigmoid_or_the_raw_value():
    raw = torch.tensor([0.0, np.log(3.0)], dtype=torch.float64)
    assert gate(raw, "sigmoid").tolist() == pytest.approx([0.5, 0.75])
    assert gate(raw, "identity") is raw


def test_soft_threshold_by_hand():
    values = torch.tensor([-3.0, -1.0, 0.5, 2.0])
    assert soft(values, torch.tensor(1.0)).tolist() == [-2.0, 0.0, 0.0, 1.0]


def test_top_channels_are_those_with_the_largest_gates():
    gates = torch.tensor([0.1, 0.9, -0.95, 0.2, 0.8])
    assert top_channels(gates, 0.4).tolist() == [1, 2]
    assert top_channels(gates, 1.0).tolist() == [0, 1, 2, 3, 4]
    assert top_channels(gates, 0.01).tolist() == [2]
    assert top_channels(torch.full((10,), 0.5), 0.3).tolist() == [0, 1, 2]


def test_attention_to_adapters_of_others_by_hand():
    adapters = torch.tensor([[[1.0, 0.0], [2.0, 4.0]], [[0.0, 3.0], [0.0, -1.0]]])
    alpha = torch.tensor([0.5, -1.0], requires_grad=True)
    found = attended(adapters, alpha)
    assert found.tolist() == [[0.5, -3.0], [1.0, 3.0]]
    found.backward(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
    assert alpha.grad.tolist() == [9.0, 1.0]


# ---- equation 2


def test_every_term_of_the_loss_against_numpy():
    work, n = random_workspace(
        old=True, solver="gradient", gate="sigmoid", lambda_mask=0.3, lambda2=0.7
    )
    x, y = data(1).train

    loss = float(work.loss(x, y).detach())

    theta = n["base"] * sigmoid(n["mask"])[:, None] + n["adapter"]
    private = {k: v.detach().double().numpy() for k, v in work.tensors.private.items()}
    hidden = np.tanh(x.double().numpy() @ theta.T + private["body.0.bias"])
    logits = hidden @ private["heads.0.weight"].T + private["heads.0.bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    cross_entropy = -log_p[np.arange(len(y)), y.numpy()].mean()
    sparsity = 0.3 * sigmoid(n["mask"]).sum()  # that of adapters is a proximal step
    moved = (n["base"] - n["anchor"]) * sigmoid(n["old_mask"])[:, None]
    drift = 0.7 * np.square(moved + n["old"] - n["old_anchor"]).sum()
    assert loss == pytest.approx(cross_entropy + sparsity + drift, rel=1e-5)


def test_a_sigmoid_is_penalised_as_a_gate_and_not_as_a_raw_mask():
    work, numbers = random_workspace(lambda_mask=0.3, gate="sigmoid")
    work.gate_penalty().backward()
    gates = sigmoid(numbers["mask"])
    # Its slope at m is lambda g (1 - g): towards 0, where |m| would pull to 0.5.
    np.testing.assert_allclose(
        work.leaves[f"masks/{W}"].grad, 0.3 * gates * (1 - gates), rtol=1e-5
    )
    assert list(work.sparse) == [f"adapters/{W}"]


# ---- its minimum over old adapters, once the base is given

GRID = np.linspace(-6, 6, 40_001)


def drawn(seed=0):
    """Draw dB, and A_old and gates of two tasks."""
    rng = np.random.default_rng(seed)
    moved, *old = (torch.tensor(rng.normal(size=(3, 2))) for _ in range(3))
    return moved, [(adapter, torch.tensor(rng.uniform(size=3))) for adapter in old]


def followed(moved, old, lambda1, lambda2=LAMBDA2):
    """Compute the cost that the base pays, of pairs of an adapter and its gates."""
    adapters, gates = zip(*old, strict=True)
    return following_cost(moved, Followers.of(adapters, gates, lambda2), lambda1)


def plainly(moved, old, lambda1, lambda2):
    """Compute the same task by task: Huber's function of u, and no pass is saved."""
    cost = 0.0
    for adapter, gates in old:
        u = adapter - moved * gates.view(-1, *[1] * (moved.dim() - 1))
        near = u.abs() <= lambda1 / (2 * lambda2)
        far = lambda1 * u.abs() - lambda1**2 / (4 * lambda2)
        cost = cost + torch.where(near, lambda2 * u.square(), far).sum()
    return cost


def costs(adapter, moved, gates, lambda1):
    """Compute what each value of the grid costs as each entry of A: (3, 2, grid)."""
    drift = (moved * gates[:, None] - adapter).numpy()[..., None] + GRID
    return LAMBDA2 * drift**2 + lambda1 * np.abs(GRID)


@pytest.mark.parametrize("lambda1", [0.0, 0.3, 5.0])
def test_closed_forms_are_the_best_on_a_fine_grid(lambda1):
    moved, old = drawn()
    for adapter, gates in old:
        found = retroactive(adapter, moved, gates, lambda1, LAMBDA2)
        best = GRID[costs(adapter, moved, gates, lambda1).argmin(-1)]
        np.testing.assert_allclose(found, best, atol=4e-4)
    best = sum(costs(a, moved, g, lambda1).min(-1).sum() for a, g in old)
    found = followed(moved, old, lambda1)
    assert float(found) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("lambda1", [0.02, 5.0])
def test_the_pull_at_the_base_is_the_slope_of_that_cost(lambda1):
    moved, old = drawn()
    moved.requires_grad_()
    assert torch.autograd.gradcheck(lambda b: followed(b, old, lambda1), moved)


@pytest.mark.parametrize("shape", [(500, 700), (40, 20, 5, 5), (3, 2), (7,)], ids=str)
@pytest.mark.parametrize("tasks", [1, 9])
def test_the_pass_over_all_tasks_computes_what_the_plain_form_does(shape, tasks):
    draw = torch.Generator().manual_seed(tasks)
    moved = 0.01 * torch.randn(shape, generator=draw, dtype=torch.float64)
    levels = torch.arange(-3, 4) / 100  # rounded adapters, many of them empty
    old = [
        (
            levels[torch.randint(7, shape, generator=draw)].double(),
            torch.rand(shape[0], generator=draw, dtype=torch.float64),
        )
        for _ in range(tasks)
    ]
    a, b = (moved.clone().requires_grad_() for _ in range(2))
    found, expected = followed(a, old, 0.1, 4.0), plainly(b, old, 0.1, 4.0)
    found.backward()
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-14)


def test_empty_old_adapters_brake_the_base_by_their_gates():
    moved = torch.tensor([[0.5, -0.5], [0.0, 1e-6]], requires_grad=True)
    gates = torch.tensor([1.0, 0.25]), torch.tensor([0.5, 0.25])
    followed(moved, [(torch.zeros(2, 2), g) for g in gates], 0.1, 2.0).backward()
    # Beyond lambda1 / (2 lambda2) each is worth lambda1 g an entry.
    slope = 2 * 2.0 * 1e-6 * (0.25**2 + 0.25**2)
    torch.testing.assert_close(moved.grad, torch.tensor([[0.15, -0.15], [0.0, slope]]))


def test_without_the_second_term_an_old_adapter_stays():
    old = torch.tensor([[1.0, -2.0]])
    assert retroactive(old, torch.ones(1, 2), torch.ones(1), 0.1, 0.0) is old


# ---- where training ends


def minimised(work, names, objective, optimizer=ADAM):
    """Train by optimizer and proximal step, without noise."""
    job = Fit(
        parameters={name: work.leaves[name] for name in names},
        objective=lambda x, y: objective(),
        examples=Examples(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64)),
        training=Training(30, batch_size=1, learning_rate=0.03, optimizer=optimizer),
        seed=0,
        round=1,
        validate=lambda: Score(1.0, 0.0),
        after_step=work.proximal_step,
    )
    fit(job)
    return [work.leaves[name].detach() for name in names]


def parabolas(work, names, seed=4):
    """Make sum_j h_j (w_j - b_j)^2 / 2 as a function, and h and b by leaf."""
    rng = np.random.default_rng(seed)
    shapes = {name: work.leaves[name].shape for name in names}
    h = {n: torch.tensor(np.float32(rng.uniform(0.2, 5, s))) for n, s in shapes.items()}
    b = {n: torch.tensor(np.float32(rng.normal(size=s))) for n, s in shapes.items()}

    def objective():
        return sum((h[n] * (work.leaves[n] - b[n]) ** 2 / 2).sum() for n in names)

    return objective, h, b


@pytest.mark.parametrize(
    "optimizer",
    [ADAM, OptimizerChoice("sgd", momentum=0.9)],
    ids=["adam", "momentum"],
)
def test_training_ends_at_the_closed_form_of_a_lasso(optimizer):
    """Minimise sum_j h_j (w_j - b_j)^2 / 2 + lambda |w_j|: soft(b_j, lambda / h_j).

    Entries differ in curvature and start; a threshold of rate times lambda would weigh
    lambda by the size of each entry's gradient, and end elsewhere.
    """
    work, _ = random_workspace(lambda1=0.9, lambda_mask=0.8, gate="identity")
    names = [f"adapters/{W}", f"masks/{W}"]
    objective, h, b = parabolas(work, names)
    for name, found, weight in zip(
        names, minimised(work, names, objective, optimizer), (0.9, 0.8), strict=True
    ):
        best = b[name].sign() * (b[name].abs() - weight / h[name]).clamp(0)
        assert 0 < (best == 0).double().mean() < 1
        assert torch.equal(found == 0, best == 0), "the zeros are exact"
        torch.testing.assert_close(found, best, atol=2e-3, rtol=0)


def test_both_solvers_have_the_same_minimum_in_the_base_and_in_an_old_adapter():
    """The exact shortcut against equation 2 as printed, with a base that may move."""
    found = {}
    for solver in ("closed", "gradient"):
        work, n = random_workspace(old=True, solver=solver, lambda1=0.3, lambda2=0.7)
        names = [f"base/{W}", *(f"old/{t}/{W}" for t in work.tensors.old)]
        cost, _, goal = parabolas(work, names[:1])
        found[solver] = minimised(work, names, lambda c=cost, w=work: c() + w.drift())
    (base,) = found["closed"]
    torch.testing.assert_close(base, found["gradient"][0], atol=2e-3, rtol=0)
    assert (base - goal[f"base/{W}"]).abs().max() > 0.1, "the old task pulls at it"
    followed = retroactive(
        torch.from_numpy(n["old_anchor"]),
        base - torch.from_numpy(n["anchor"]),
        work.tensors.old[0].gates[W],
        0.3,
        0.7,
    )
    assert 0 < (followed == 0).double().mean() < 1
    torch.testing.assert_close(followed, found["gradient"][1], atol=2e-3, rtol=0)
