import math

import numpy as np
import pytest
import torch

from fcl_flower.core.schedule import derive
from fcl_flower.data.examples import Examples, in_batches
from fcl_flower.training.loop import Fit, Score, Training, fit, score

COUNT, INPUTS, CLASSES = 23, 4, 3


@pytest.fixture(scope="module")
def examples():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, INPUTS, generator=generator)
    return Examples(x, torch.randint(CLASSES, (COUNT,), generator=generator))


def linear():
    generator = torch.Generator().manual_seed(1)
    return {
        "w": torch.nn.Parameter(torch.randn(CLASSES, INPUTS, generator=generator)),
        "b": torch.nn.Parameter(torch.zeros(CLASSES)),
    }


def cross_entropy(leaves):
    def loss(x, y):
        logits = torch.nn.functional.linear(x, leaves["w"], leaves["b"])
        return torch.nn.functional.cross_entropy(logits, y)

    return loss


def always(value):
    return lambda: Score(value, 0.5)


def train(leaves, examples, validate=None, number=1, optimizer_state=None, **given):
    training = {"epochs": 2, "batch_size": 5, "learning_rate": 0.01}
    known = {key: given.pop(key) for key in list(given) if key in Training.__slots__}
    arguments = {"seed": 3, "client": 1, "objective": cross_entropy(leaves), **given}
    job = Fit(
        parameters=leaves,
        examples=examples,
        training=Training(**{**training, **known}),
        validate=validate or iter_scores(range(1000, 0, -1)),
        optimizer_state=optimizer_state or {},
        round=number,
        **arguments,
    )
    return fit(job)


def iter_scores(losses):
    """Return a validation that gives one loss after the other."""
    left = iter(losses)
    return lambda: Score(float(next(left)), 0.5)


def orders(number, epochs=2, seed=3, client=1):
    """The order of the examples, by torch's own generator."""
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(
            derive(seed, "shuffle", client, number, epoch)
        )
        yield torch.randperm(COUNT, generator=generator)


def test_two_rounds_are_one_unbroken_run_of_adam(examples):
    leaves = linear()
    optimizer_state = {}
    for number in (1, 2):
        # A new process: only the values and the optimizer_state remain.
        leaves = {n: torch.nn.Parameter(p.detach().clone()) for n, p in leaves.items()}
        optimizer_state = train(
            leaves, examples, number=number, optimizer_state=optimizer_state
        ).optimizer_state

    plain = linear()
    adam = torch.optim.Adam(plain.values(), lr=0.01, fused=True)
    for number in (1, 2):
        for order in orders(number):
            for start in range(0, COUNT, 5):
                chosen = order[start : start + 5]
                adam.zero_grad()
                cross_entropy(plain)(examples.x[chosen], examples.y[chosen]).backward()
                adam.step()
    for name in plain:
        assert torch.equal(leaves[name], plain[name]), name
        np.testing.assert_array_equal(
            optimizer_state[f"square/{name}"],
            adam.state[plain[name]]["exp_avg_sq"].numpy(),
        )
    assert optimizer_state["step/w"] == 2 * 2 * math.ceil(COUNT / 5)


def test_mixed_precision_computes_in_bfloat16_what_is_kept_in_float32(examples):
    """By hand: inputs and parameters are rounded, gradients come back whole."""
    leaves, seen = linear(), []

    def lost(x, y):
        logits = torch.nn.functional.linear(x, leaves["w"], leaves["b"])
        seen.append(logits.dtype)
        return torch.nn.functional.cross_entropy(logits, y)

    train(leaves, examples, objective=lost, precision="bfloat16")

    plain = linear()
    adam = torch.optim.Adam(plain.values(), lr=0.01, fused=True)
    for order in orders(1):
        for start in range(0, COUNT, 5):
            chosen = order[start : start + 5]
            logits = torch.nn.functional.linear(
                *(part.bfloat16() for part in (examples.x[chosen], plain["w"])),
                plain["b"].bfloat16(),
            )
            adam.zero_grad()
            torch.nn.functional.cross_entropy(
                logits.float(), examples.y[chosen]
            ).backward()
            adam.step()
    exact = linear()
    train(exact, examples)
    for name, leaf in plain.items():
        assert leaves[name].dtype == torch.float32
        assert torch.equal(leaves[name], leaf), name
        assert not torch.equal(leaves[name], exact[name])
    assert {*seen} == {torch.bfloat16}


def test_without_memory_a_task_starts_afresh(examples):
    done = train(linear(), examples)
    leaves, again = linear(), linear()
    train(leaves, examples, number=2)
    train(again, examples, number=2, optimizer_state=done.optimizer_state)
    assert not torch.equal(leaves["w"], again["w"])


def test_the_rate_falls_by_three_after_patience_stagnating_validations(examples):
    losses = [1.0, 0.9, 0.9, 0.95, 0.9, 0.8, 0.8, 0.8, 0.8, 0.7]
    #         new  new  1    2     3:/3 new  1    2    3:/3 new
    rates = []
    leaves, optimizer_state, validate = linear(), {}, iter_scores(losses)
    for number in range(1, len(losses) + 1):
        optimizer_state = train(
            leaves, examples, validate, number, optimizer_state, epochs=1, lr_patience=3
        ).optimizer_state
        rates.append(float(optimizer_state["rate"]))
    expected = [0.01] * 4 + [0.01 / 3] * 4 + [0.01 / 9] * 2
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    assert float(optimizer_state["best"]) == 0.7


def test_rounds_and_epochs_count_alike_for_the_rate(examples):
    done = train(linear(), examples, always(1.0), epochs=5, lr_patience=2)
    # The first is a new best; then two stagnate, and two more.
    assert float(done.optimizer_state["rate"]) == pytest.approx(0.01 / 9)


def test_the_falling_rate_is_used_at_once(examples):
    leaves, seen = linear(), []
    train(
        leaves,
        examples,
        always(1.0),
        objective=lambda x, y: leaves["w"].sum(),  # of gradient 1, as its root is
        epochs=3,
        lr_patience=1,
        batch_size=COUNT,
        after_step=lambda step_size: seen.append(float(step_size("w")[0, 0])),
    )
    np.testing.assert_allclose(seen, [0.01, 0.01, 0.01 / 3])


def test_training_stops_for_good_when_the_rate_is_too_small(examples):
    leaves, steps = linear(), []
    given = {"learning_rate": 2e-7, "lr_patience": 1, "batch_size": COUNT}
    done = train(
        leaves, examples, always(1.0), epochs=9, after_step=steps.append, **given
    )
    assert len(steps) == 2  # a new best, then one stagnation, then 6.7e-8
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    later = train(
        leaves,
        examples,
        always(0.1),
        2,
        done.optimizer_state,
        after_step=steps.append,
        **given,
    )
    assert len(steps) == 2
    assert all(torch.equal(leaves[name], before[name]) for name in leaves)
    assert math.isnan(later.loss)
    assert later.valid == Score(0.1, 0.5)
    assert later.metrics() == {"valid_loss": 0.1, "valid_accuracy": 0.5}


def test_a_rate_of_exactly_the_limit_still_trains(examples):
    steps = []
    train(
        linear(),
        examples,
        epochs=1,
        learning_rate=1e-7,
        batch_size=COUNT,
        after_step=steps.append,
    )
    assert len(steps) == 1


def test_without_validation_examples_the_rate_stays(examples):
    done = train(linear(), examples, always(math.nan), epochs=9, lr_patience=1)
    assert float(done.optimizer_state["rate"]) == 0.01
    assert "valid_loss" not in done.metrics()


def test_a_step_is_its_size_times_the_mean_gradient(examples):
    """Adam's two means by hand, for gradients that differ by step and by entry."""
    leaves, sizes = linear(), []
    places, gradients = [leaves["w"].detach().clone()], []

    def slope(x, y):
        gradients.append(x.sum(0).expand(CLASSES, -1) + 1)
        return (leaves["w"] * gradients[-1]).sum()

    def note(step_size):
        sizes.append(step_size("w"))
        places.append(leaves["w"].detach().clone())

    train(
        leaves,
        examples,
        objective=slope,
        epochs=1,
        rates={"w": 3.0},
        after_step=note,
    )

    mean = square = 0.0
    for step, (gradient, size) in enumerate(zip(gradients, sizes, strict=True), 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        root = (square / (1 - 0.999**step)).sqrt()
        torch.testing.assert_close(size, 3.0 * 0.01 / (root + 1e-8))
        torch.testing.assert_close(
            places[step - 1] - places[step], size * mean / (1 - 0.9**step)
        )


def test_a_factor_scales_the_rate_of_its_parameter_alone(examples):
    def separable(leaves):
        return lambda x, y: sum((leaf**2).sum() for leaf in leaves.values())

    def moved(rate, **rates):
        leaves = linear()
        leaves["b"].data += 1
        train(
            leaves,
            examples,
            objective=separable(leaves),
            learning_rate=rate,
            rates=rates,
            epochs=1,
        )
        return leaves

    plain, double = moved(0.01), moved(0.02)
    mixed = moved(0.01, w=2.0)
    assert torch.equal(mixed["w"], double["w"])
    assert torch.equal(mixed["b"], plain["b"])
    still = moved(0.01, w=0.0)
    assert torch.equal(still["w"], linear()["w"])
    assert torch.equal(still["b"], plain["b"])


def test_the_loss_is_the_mean_over_the_examples_of_the_last_epoch(examples):
    values = iter([7.0, 7.0, 7.0, 7.0, 7.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    leaves = linear()
    done = train(
        leaves,
        examples,
        objective=lambda x, y: leaves["b"].sum() * 0 + next(values),
        epochs=2,
    )
    assert done.loss == pytest.approx((5 * (1 + 2 + 3 + 4) + 3 * 5) / COUNT)
    assert done.metrics()["loss"] == done.loss


def test_a_client_without_training_examples_has_no_loss():
    nothing = Examples(torch.zeros(0, INPUTS), torch.zeros(0, dtype=torch.int64))
    done = train(linear(), nothing, epochs=1)
    assert math.isnan(done.loss)
    assert "loss" not in done.metrics()
    assert "step/w" not in done.optimizer_state


def test_a_score_is_a_mean_over_all_batches():
    count = 1100  # three batches of at most 512
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, CLASSES, generator=generator)
    y = torch.randint(CLASSES, (count,), generator=generator)
    found = score(lambda logits: logits, Examples(x, y))
    exact = x.double().numpy()
    by_hand = np.log(np.exp(exact).sum(1)) - exact[np.arange(count), y]
    assert found.loss == pytest.approx(by_hand.mean(), rel=1e-5)
    assert found.accuracy == np.mean(exact.argmax(1) == y.numpy())


def test_a_score_of_nothing_is_unknown():
    nothing = Examples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    found = score(lambda x: x, nothing)
    assert math.isnan(found.loss)
    assert math.isnan(found.accuracy)


# ---- when a round ends early


def epochs_of(examples, losses, optimizer_state=None, number=1, **given):
    """Return how many epochs a round trains, with one step in each, and the state."""
    steps = []
    done = train(
        linear(),
        examples,
        iter_scores(losses),
        number,
        optimizer_state,
        epochs=len(losses),
        batch_size=COUNT,
        after_step=steps.append,
        **{"lr_patience": 0, **given},
    )
    return len(steps), done


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0, 3.0, 3.0, 3.0, 3.0], 3),
        ([3.0, 4.0, 2.0, 2.5, 2.0, 1.0], 5),
        ([3.0, 4.0, 2.0, 2.5, 1.0, 1.0], 6),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 5),
    ],
)
def test_a_round_ends_after_so_many_stagnating_epochs(examples, losses, expected):
    count, done = epochs_of(examples, losses, early_stopping_patience=2)
    assert count == expected
    assert done.valid.loss == losses[expected - 1]


def test_a_round_is_compared_with_itself_and_counts_anew(examples):
    count, done = epochs_of(examples, [1.0, 1.0, 1.0, 1.0], early_stopping_patience=2)
    assert count == 3
    # Worse than all of the last round, but getting better.
    losses = [9.0, 8.0, 7.0, 6.0]
    count, done = epochs_of(
        examples, losses, done.optimizer_state, 2, early_stopping_patience=2
    )
    assert count == 4
    # The first epoch of a round is its best so far.
    count, _ = epochs_of(
        examples, [9.0] * 5, done.optimizer_state, 3, early_stopping_patience=2
    )
    assert count == 3


def test_patience_0_keeps_the_rate(examples):
    count, done = epochs_of(examples, [1.0] * 9, lr_patience=0)
    assert count == 9
    assert float(done.optimizer_state["rate"]) == 0.01


def test_the_rate_falls_in_the_epoch_that_ends_a_round(examples):
    count, done = epochs_of(
        examples, [1.0] * 9, early_stopping_patience=2, lr_patience=2
    )
    assert count == 3
    assert float(done.optimizer_state["rate"]) == pytest.approx(0.01 / 3)


# ---- dropout


def dropped(examples, **given):
    """Return what dropout leaves of ones, step by step."""
    leaves, seen = linear(), []

    def objective(x, y):
        seen.append(torch.nn.functional.dropout(torch.ones(64)).tolist())
        return cross_entropy(leaves)(x, y)

    train(leaves, examples, objective=objective, **given)
    return seen


def test_dropout_depends_on_seed_client_round_and_epoch(examples):
    usual = dropped(examples)
    torch.rand(7)  # by somebody else
    assert dropped(examples) == usual
    assert len({tuple(step) for step in usual}) == len(usual), "each step its own"
    for other in ({"seed": 4}, {"client": 2}, {"number": 2}):
        assert not {tuple(step) for step in dropped(examples, **other)} & {
            tuple(step) for step in usual
        }


def test_training_leaves_the_generator_of_others_alone(examples):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    dropped(examples)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_last_batch_that_normalisation_cannot_take_joins_the_one_before():
    def sizes(count, batch, smallest=2):
        return [len(one) for one in in_batches(torch.arange(count), batch, smallest)]

    assert sizes(7, 3) == [3, 4]
    assert sizes(8, 3) == [3, 3, 2]
    assert sizes(7, 3, smallest=1) == [3, 3, 1]
    assert sizes(1, 3) == sizes(0, 3) == []


def test_batch_normalisation_trains_whatever_the_last_batch_is(examples):
    body = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))

    def objective(x, y):
        return torch.nn.functional.cross_entropy(body.train()(x), y)

    for count in (COUNT, 1):  # of COUNT one is left over
        few = Examples(examples.x[:count], examples.y[:count])
        done = train(
            dict(body.named_parameters()),
            few,
            objective=objective,
            batch_size=COUNT - 1,
            smallest_batch=2,
        )
        assert done.steps == (2 if count > 1 else 0)
        assert np.isnan(done.loss) == (count == 1)
