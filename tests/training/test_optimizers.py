"""Torch's own optimizers are the reference, bit by bit."""

import math

import numpy as np
import pytest
import torch

from fcl_flower.core.schedule import derive
from fcl_flower.data.examples import Examples
from fcl_flower.training.loop import Fit, Score, Training, fit
from fcl_flower.training.optimizers import Optimizer, OptimizerChoice

COUNT, RATE = 23, 0.03


@pytest.fixture(scope="module")
def examples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 4, generator=generator)
    return Examples(x, torch.randint(3, (COUNT,), generator=generator))


def linear():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.nn.Parameter(torch.randn(3, 4, generator=generator)),
        "b": torch.nn.Parameter(torch.randn(3, generator=generator)),
    }


def loss_of(leaves, x, y):
    logits = torch.nn.functional.linear(x, leaves["w"], leaves["b"])
    return torch.nn.functional.cross_entropy(logits, y)


def train(leaves, examples, choice, rounds=(1, 2), **given):
    """Return the result of the last round; each starts in a new process."""
    kept = {}
    for number in rounds:
        fresh = {n: torch.nn.Parameter(p.detach().clone()) for n, p in leaves.items()}
        job = Fit(
            parameters=fresh,
            objective=lambda x, y, fresh=fresh: loss_of(fresh, x, y),
            examples=examples,
            training=Training(2, 5, RATE, lr_patience=0, optimizer=choice),
            seed=3,
            client=1,
            round=number,
            optimizer_state=kept,
            **given,
        )
        done = fit(job)
        kept = done.optimizer_state
        for name, leaf in fresh.items():
            leaves[name].data.copy_(leaf.data)
    return done


def batches_of(examples, rounds=(1, 2), epochs=2):
    """Yield the batches in their order, by torch's own generator."""
    for number in rounds:
        for epoch in range(epochs):
            seed = derive(3, "shuffle", 1, number, epoch)
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(COUNT, generator=generator)
            for start in range(0, COUNT, 5):
                chosen = order[start : start + 5]
                yield examples.x[chosen], examples.y[chosen]


def train_plainly(optimizer, leaves, examples):
    for x, y in batches_of(examples):
        optimizer.zero_grad()
        loss_of(leaves, x, y).backward()
        optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_are_one_unbroken_run_of_torchs_sgd(examples, momentum, decay):
    leaves = linear()
    done = train(leaves, examples, OptimizerChoice("sgd", momentum, decay))

    plain = linear()
    sgd = torch.optim.SGD(
        plain.values(), RATE, momentum, weight_decay=decay, fused=True
    )
    train_plainly(sgd, plain, examples)
    for name, leaf in plain.items():
        assert torch.equal(leaves[name], leaf), name
        if momentum:
            velocity = sgd.state[leaf]["momentum_buffer"]
            kept = done.optimizer_state[f"velocity/{name}"]
            np.testing.assert_array_equal(kept, velocity.numpy())


def test_sgd_is_momentum_and_decay_by_hand(examples):
    leaves, numbers = linear(), linear()
    train(leaves, examples, OptimizerChoice("sgd", 0.8, 0.1))

    w, b = (numbers[name].detach().double().numpy() for name in ("w", "b"))
    velocity = {"w": np.zeros_like(w), "b": np.zeros_like(b)}
    for batch in batches_of(examples):
        x, y = (part.double().numpy() for part in batch)
        logits = x @ w.T + b
        share = np.exp(logits - logits.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        share[np.arange(len(y)), y.astype(int)] -= 1
        share /= len(y)
        for name, value, slope in (("w", w, share.T @ x), ("b", b, share.sum(0))):
            velocity[name] = 0.8 * velocity[name] + slope + 0.1 * value
            value -= RATE * velocity[name]
    np.testing.assert_allclose(leaves["w"].detach(), w, atol=1e-5)
    np.testing.assert_allclose(leaves["b"].detach(), b, atol=1e-5)


def test_adams_decay_is_torchs(examples):
    leaves, plain = linear(), linear()
    train(leaves, examples, OptimizerChoice(weight_decay=0.1))

    adam = torch.optim.Adam(plain.values(), RATE, weight_decay=0.1, fused=True)
    train_plainly(adam, plain, examples)
    for name, leaf in plain.items():
        assert torch.equal(leaves[name], leaf), name


def test_sgd_without_momentum_keeps_nothing_of_a_parameter(examples):
    kept = train(linear(), examples, OptimizerChoice("sgd")).optimizer_state
    assert kept.keys() == {"rate", "best", "stale"}


def test_a_factor_scales_the_rate_of_its_parameter_in_sgd(examples):
    one, scaled = linear(), linear()
    train(one, examples, OptimizerChoice("sgd"))
    train(scaled, examples, OptimizerChoice("sgd"), rates={"b": 0.0})
    assert torch.equal(scaled["b"], linear()["b"])
    assert not torch.equal(one["b"], scaled["b"])
    assert not torch.equal(scaled["w"], linear()["w"])


@pytest.mark.parametrize("momentum", [0.0, 0.75])
def test_a_step_of_sgd_is_its_size_times_the_mean_gradient(examples, momentum):
    """Gradients that stay: the velocity is their sum, 1 / (1 - momentum) of them."""
    leaf = {"w": torch.nn.Parameter(torch.zeros(3))}
    slope, sizes, places = torch.tensor([1.0, -2.0, 0.5]), [], []

    def note(step_size):
        sizes.append(step_size("w"))
        places.append(leaf["w"].detach().clone())

    choice = OptimizerChoice("sgd", momentum)
    job = Fit(
        parameters=leaf,
        objective=lambda x, y: (leaf["w"] * slope).sum(),
        examples=examples,
        training=Training(60, COUNT, RATE, 0, optimizer=choice),
        seed=0,
        rates={"w": 3.0},
        after_step=note,
    )
    fit(job)

    expected = torch.full((3,), 3 * RATE / (1 - momentum))
    assert all(torch.equal(size, expected) for size in sizes)
    torch.testing.assert_close(places[-2] - places[-1], sizes[-1] * slope)


@pytest.mark.parametrize(
    ("losses", "epochs"), [([3.0, 2.0, 1.0, 0.5], 4), ([3.0, 3.0, 3.0, 1.0], 3)]
)
def test_the_steps_of_a_round_are_counted(examples, losses, epochs):
    left, taken, leaves = iter(losses), [], linear()
    job = Fit(
        parameters=leaves,
        objective=lambda x, y: loss_of(leaves, x, y),
        examples=examples,
        training=Training(4, 5, RATE, lr_patience=0, early_stopping_patience=2),
        seed=0,
        validate=lambda: Score(next(left), 0.5),
        after_step=taken.append,
    )
    done = fit(job)
    assert done.steps == len(taken) == epochs * math.ceil(COUNT / 5)
    assert "steps" not in done.metrics()


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


def test_a_leaf_that_never_has_a_gradient_has_no_moments():
    leaves = leaves_of()
    before = leaves["head"].detach().clone()
    adam = adam_of(leaves, 0.01, {}, {})
    give_gradients(leaves, 1)

    adam.step()

    assert torch.equal(leaves["head"], before)
    assert {key.split("/")[1] for key in adam.moments()} == {"w", "b", "scalar"}


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
