"""DP-SGD against gradients by hand: clipping, noise, sampling, and what it costs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.errors import BudgetError
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.examples import Examples
from fcl_flower.privacy.accounting import sampled_epsilon
from fcl_flower.training import private
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.private import (
    charge,
    clipped_sum,
    fit_dp_sgd,
    planned_steps,
    spent_epsilon,
)
from fcl_flower.training.rates import RateSchedule

TRAINING = Training(epochs=3, batch_size=4, learning_rate=0.1)
PRIVACY = PrivacySection(unit="example", noise_multiplier=2.0, clip=0.5, delta=1e-5)


class Recorded:
    """An optimizer that takes no step, but keeps the gradients it was given."""

    seen: list[torch.Tensor]

    def __init__(self, choice, parameters, rate):
        self.parameters = list(parameters.values())
        Recorded.seen = []

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        Recorded.seen.append(self.parameters[0].grad.clone())


def gradients(
    monkeypatch, count, width, *, rng, penalty=lambda: 0.0, scale=1.0, inputs=None
):
    """Return the gradients of a linear loss: an example's is its own input."""
    monkeypatch.setattr(private, "Optimizer", Recorded)
    weight = nn.Parameter(torch.zeros(width))
    if inputs is None:
        inputs = scale * np.random.default_rng(0).normal(size=(count, width))
    x = torch.from_numpy(inputs)
    fit_dp_sgd(
        {"w": weight},
        lambda leaves, x, y: (leaves["w"] * x).sum(),
        penalty if penalty() == 0.0 else lambda: penalty(weight),
        Examples(x.float(), torch.zeros(count, dtype=torch.int64)),
        TRAINING,
        PRIVACY,
        rng,
    )
    return torch.stack(Recorded.seen), x.float()


class All:
    """A generator by which every example is drawn, and noise is a constant."""

    def __init__(self, noise=0.0, drawn=0.0):
        self.noise, self.drawn, self.deviations = noise, drawn, set()

    def random(self, count):
        return np.full(count, self.drawn)

    def normal(self, mean, deviation, shape):
        self.deviations.add(deviation)
        return np.full(shape, self.noise)


def test_each_examples_gradient_is_clipped_over_all_parameters():
    found = clipped_sum(
        {
            "a": torch.tensor([[3.0, 0.0], [0.1, 0.0], [float("nan"), 1.0]]),
            "b": torch.tensor([[4.0], [0.2], [1.0]]),
        },
        clip=0.5,
    )
    torch.testing.assert_close(found["a"], torch.tensor([0.3 + 0.1, 0.0]))
    torch.testing.assert_close(found["b"], torch.tensor([0.4 + 0.2]))


@pytest.mark.parametrize("size", [0.01, 1.0, 1e4])
def test_one_example_moves_a_sum_by_the_clip_at_most(size):
    draw = torch.Generator().manual_seed(1)
    batch = {"w": size * torch.randn(6, 3, 2, generator=draw)}
    without = {"w": batch["w"][:5]}
    one, other = (clipped_sum(b, 0.5)["w"] for b in (batch, without))
    assert float((one - other).norm()) <= 0.5 + 1e-5


def test_a_step_is_the_noised_sum_over_the_expected_batch(monkeypatch):
    rng = All(noise=0.25)
    found, x = gradients(monkeypatch, count=10, width=3, rng=rng)
    norms = x.norm(dim=1, keepdim=True)
    clipped = (x * (0.5 / norms).clamp(max=1)).sum(0)
    # Four examples are expected in a batch, of however many there are.
    torch.testing.assert_close(found[0], (clipped + 0.25) / 4)
    torch.testing.assert_close(found, found[:1].expand_as(found))  # of no step before
    assert rng.deviations == {2.0 * 0.5}
    assert len(found) == 3 * 3  # ceil(10 / 4) steps in each of three epochs


def test_nobody_in_a_batch_leaves_noise_alone(monkeypatch):
    found, _ = gradients(monkeypatch, 10, 3, rng=All(noise=0.25, drawn=1.0))
    torch.testing.assert_close(found[0], torch.full((3,), 0.25 / 4))


def test_every_example_has_a_coin_of_its_own_and_noise_is_gaussian(monkeypatch):
    found, _ = gradients(
        monkeypatch, 400, 500, rng=np.random.default_rng(2), scale=1e-9
    )
    noise = found * 4
    assert float(noise.std()) == pytest.approx(1.0, rel=0.02)

    class Coins(All):
        def __init__(self):
            super().__init__()
            self.random = np.random.default_rng(5).random

    found, _ = gradients(monkeypatch, 400, 400, rng=Coins(), inputs=np.eye(400))
    # The gradient of each example is its own unit vector: who was drawn can be read.
    assert set(found.unique().tolist()) == {0.0, 0.125}
    sizes = (found > 0).sum(1).numpy()
    assert np.mean(sizes) == pytest.approx(4, rel=0.1)
    assert np.var(sizes) == pytest.approx(4 * 0.99, rel=0.25)


def test_a_penalty_of_the_weights_has_its_gradient_whole(monkeypatch):
    def penalty(weight=None):
        return 0.5 if weight is None else (7.0 * weight).sum()

    found, _ = gradients(monkeypatch, 10, 3, rng=All(drawn=1.0), penalty=penalty)
    torch.testing.assert_close(found[0], torch.full((3,), 7.0))

    rng = All(noise=0.25, drawn=1.0)
    found, _ = gradients(monkeypatch, 10, 3, rng=rng, penalty=penalty)
    torch.testing.assert_close(found[0], torch.full((3,), 7.0 + 0.25 / 4))


def test_the_noised_mean_goes_to_sgd_where_that_is_chosen():
    """Two examples' gradients, none clipped, no noise: momentum and decay by hand."""
    weight = nn.Parameter(torch.tensor([2.0]))
    choice = OptimizerChoice("sgd", momentum=0.5, weight_decay=0.1)
    fit_dp_sgd(
        {"w": weight},
        lambda leaves, x, y: (leaves["w"] * x).sum(),
        lambda: 0.0,
        Examples(torch.tensor([[0.2], [0.4]]), torch.zeros(2, dtype=torch.int64)),
        replace(TRAINING, optimizer=choice),
        PRIVACY,
        All(drawn=0.0),
    )
    value, velocity = 2.0, 0.0
    for _ in range(TRAINING.epochs):
        velocity = 0.5 * velocity + 0.3 + 0.1 * value
        value -= TRAINING.learning_rate * velocity
    assert weight.item() == pytest.approx(value)


def test_the_rate_of_a_private_step_follows_the_schedule():
    """Slope 0.2, no noise: the value falls by it times the sum of the rates."""
    weight = nn.Parameter(torch.tensor([2.0]))
    plan = Schedule(1, tasks=1, rounds_per_task=2, fraction=1.0, seed=0)
    cosine = RateSchedule("cosine", plan)
    fit_dp_sgd(
        {"w": weight},
        lambda leaves, x, y: (leaves["w"] * x).sum(),
        lambda: 0.0,
        Examples(torch.tensor([[0.2], [0.2]]), torch.zeros(2, dtype=torch.int64)),
        replace(TRAINING, optimizer=OptimizerChoice("sgd"), schedule=cosine),
        PRIVACY,
        All(drawn=0.0),
        server_round=2,
    )
    # The second of two rounds, in three steps.
    rates = [0.05 * (1 + math.cos(math.pi * (3 + step) / 6)) for step in range(3)]
    assert weight.item() == pytest.approx(2.0 - 0.2 * sum(rates))


def test_every_parameter_has_noise_of_its_own(monkeypatch):
    monkeypatch.setattr(private, "Optimizer", Recorded)
    parameters = {name: nn.Parameter(torch.zeros(2, 3)) for name in "abc"}
    fit_dp_sgd(
        parameters,
        lambda leaves, x, y: sum((leaf * x).sum() for leaf in leaves.values()),
        lambda: 0.0,
        Examples(torch.zeros(4, 2, 3), torch.zeros(4, dtype=torch.int64)),
        TRAINING,
        PRIVACY,
        np.random.default_rng(3),
    )
    noise = torch.stack([p.grad for p in parameters.values()])
    assert len(noise.unique()) == noise.numel()


def test_steps_are_as_many_as_make_an_epoch():
    assert planned_steps(10, TRAINING, 2.0) == {(0.4, 2.0): 9}
    assert planned_steps(3, TRAINING, 2.0) == {(1.0, 2.0): 3}
    assert planned_steps(0, TRAINING, 2.0) == {}


def test_what_is_spent_adds_up_and_stops_at_the_budget():
    once = charge({}, {(0.4, 2.0): 9}, PRIVACY)
    twice = charge(once, {(0.4, 2.0): 9, (0.1, 2.0): 5}, PRIVACY)
    expected = sampled_epsilon({(0.4, 2.0): 18, (0.1, 2.0): 5}, 1e-5)
    assert spent_epsilon(twice, 1e-5) == pytest.approx(expected)
    assert spent_epsilon(once, 1e-5) < expected
    limited = PRIVACY.model_copy(update={"epsilon": expected - 1e-6})
    with pytest.raises(BudgetError, match=r"an epsilon of .*, above privacy"):
        charge(once, {(0.4, 2.0): 9, (0.1, 2.0): 5}, limited)
    assert charge(once, {(0.4, 2.0): 1}, limited)
    exact = PRIVACY.model_copy(update={"epsilon": expected})
    assert charge(once, {(0.4, 2.0): 9, (0.1, 2.0): 5}, exact) == twice


def test_what_is_spent_is_kept_at_full_precision():
    steps = {(1 / 3, 2.0): 4, (0.3, 1.1): 2}
    spent = charge({}, steps, PRIVACY)
    assert spent_epsilon(spent, 1e-3) == sampled_epsilon(steps, 1e-3)
