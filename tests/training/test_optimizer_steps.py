"""Torch's own optimizers are the reference, bit by bit."""

import numpy as np
import pytest
import torch

from fcl_flower.training.optimizers import Optimizer, OptimizerChoice
from fcl_flower.training.tensors import to_numpy

SHAPES = {"w": (5, 3), "b": (5,), "head": (2, 5), "scalar": ()}
FACTORS = {"b": 0.25, "head": 3.0}


def adam_of(leaves, rate, factors, state):
    made = Optimizer(OptimizerChoice(), leaves, rate, factors, fused=True)
    made.restore(state)
    return made


def leaves_of(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


def give_gradients(leaves, step):
    """Give all leaves a gradient, but ``head`` only in every other step."""
    generator = torch.Generator().manual_seed(100 + step)
    for name, leaf in leaves.items():
        gradient = torch.randn(leaf.shape, generator=generator)
        leaf.grad = None if name == "head" and step % 2 else gradient


def reference(leaves, rate):
    groups = [
        {"params": [leaf], "lr": rate * FACTORS.get(name, 1.0)}
        for name, leaf in leaves.items()
    ]
    return torch.optim.Adam(groups, fused=True)


def test_it_moves_as_torchs_own_does_and_goes_on_in_another_process():
    ours, theirs = leaves_of(), leaves_of()
    expected, state = reference(theirs, 0.01), {}
    for begin in (0, 4):
        adam = adam_of(ours, 0.01, FACTORS, state)
        for step in range(begin, begin + 4):
            for leaves in (ours, theirs):
                give_gradients(leaves, step)
            adam.step()
            expected.step()
        state = adam.moments()

    for name, leaf in theirs.items():
        assert torch.equal(ours[name], leaf)
        moments = expected.state[leaf]
        for ours_is, theirs_is in (
            ("step", "step"),
            ("mean", "exp_avg"),
            ("square", "exp_avg_sq"),
        ):
            kept = state[f"{ours_is}/{name}"]
            np.testing.assert_array_equal(kept, to_numpy(moments[theirs_is]))
            assert kept.dtype == np.float32


def test_a_leaf_that_never_has_a_gradient_has_no_moments():
    leaves = leaves_of()
    before = leaves["head"].detach().clone()
    adam = adam_of(leaves, 0.01, {}, {})
    give_gradients(leaves, 1)

    adam.step()

    assert torch.equal(leaves["head"], before)
    assert {key.split("/")[1] for key in adam.moments()} == {"w", "b", "scalar"}


def test_a_step_size_is_what_the_mean_gradient_was_multiplied_with():
    leaves = leaves_of()
    adam = adam_of(leaves, 0.5, FACTORS, {})
    adam.rate = 0.01
    for step in (0, 2):
        give_gradients(leaves, step)
        before = leaves["b"].detach().clone()
        adam.step()
    moments = adam.moments()
    unbiased = moments["mean/b"] / (1 - 0.9**2)

    moved = before.numpy() - leaves["b"].detach().numpy()

    np.testing.assert_allclose(adam.step_size("b").numpy() * unbiased, moved, rtol=1e-3)


def test_gradients_are_forgotten():
    leaves = leaves_of()
    give_gradients(leaves, 0)

    adam_of(leaves, 0.01, {}, {}).zero_grad()

    assert all(leaf.grad is None for leaf in leaves.values())


def test_to_go_on_from_moments_does_not_change_them():
    leaves = leaves_of()
    adam = adam_of(leaves, 0.01, {}, {})
    give_gradients(leaves, 0)
    adam.step()
    kept = adam.moments()
    before = {name: np.array(array) for name, array in kept.items()}

    again = adam_of(leaves, 0.01, {}, kept)
    give_gradients(leaves, 2)
    again.step()

    for name, array in kept.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("missing", [["head"], ["w", "b"]])
def test_a_leaf_without_a_state_begins_anew_beside_one_that_goes_on(missing):
    leaves = leaves_of()
    adam = adam_of(leaves, 0.01, {}, {})
    give_gradients(leaves, 0)
    adam.step()
    kept = {k: v for k, v in adam.moments().items() if k.split("/")[1] not in missing}

    again = adam_of(leaves, 0.01, {}, kept)
    give_gradients(leaves, 2)
    again.step()

    steps = {name: float(again.moments()[f"step/{name}"]) for name in SHAPES}
    assert steps == {name: 1.0 if name in missing else 2.0 for name in SHAPES}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "choice",
    [OptimizerChoice(), OptimizerChoice("sgd", 0.9, 0.1), OptimizerChoice("sgd")],
    ids=lambda choice: f"{choice.name} {choice.momentum}",
)
def test_a_leaf_whose_first_gradient_comes_late_begins_then(choice, fused):
    ours, theirs = leaves_of(), leaves_of()
    optimizer = Optimizer(choice, ours, 0.01, fused=fused)
    # One group a leaf: torch's fused SGD takes no mixture of new leaves and old ones.
    groups = [{"params": [leaf]} for leaf in theirs.values()]
    plain = (
        torch.optim.SGD(
            groups,
            lr=0.01,
            momentum=choice.momentum,
            weight_decay=choice.weight_decay,
            fused=fused,
        )
        if choice.name == "sgd"
        else torch.optim.Adam(groups, lr=0.01, fused=fused)
    )
    for step in (1, 2, 3, 4):  # ``head`` has none in the first
        for leaves in (ours, theirs):
            give_gradients(leaves, step)
        optimizer.step()
        plain.step()

    for name, leaf in theirs.items():
        assert torch.equal(ours[name], leaf)
