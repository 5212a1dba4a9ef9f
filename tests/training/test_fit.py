"""The training loop, against torch's own optimizers and numbers by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fcl_flower.core.schedule import derive
from fcl_flower.data.examples import Examples, in_batches
from fcl_flower.training.loop import Fit, Score, Training, fit, most_confident, score
from fcl_flower.training.optimizers import Optimizer, OptimizerChoice

COUNT, INPUTS, CLASSES, RATE = 23, 4, 3, 0.01
NOTHING = Examples(torch.zeros(0, INPUTS), torch.zeros(0, dtype=torch.int64))


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
        return functional.cross_entropy(
            functional.linear(x, leaves["w"], leaves["b"]), y
        )

    return loss


def scores(losses):
    """Return a validation that gives one loss after the other, the last one again."""
    left = list(losses)
    return lambda: Score(float(left.pop(0) if len(left) > 1 else left[0]), 0.5)


def train(leaves, examples, losses=(1.0,), number=1, state=None, **given):
    training = {"epochs": 2, "batch_size": 5, "learning_rate": RATE, "lr_patience": 0}
    training |= {key: given.pop(key) for key in [*given] if key in Training.__slots__}
    settings = {"seed": 3, "client": 1, "objective": cross_entropy(leaves), **given}
    job = Fit(
        parameters=leaves,
        examples=examples,
        training=Training(**training),
        validate=scores(losses),
        optimizer_state=state or {},
        round=number,
        **settings,
    )
    return fit(job)


def batches_of(examples, rounds=(1, 2)):
    """Yield the batches of two epochs a round in their order, by torch's generator."""
    for number in rounds:
        for epoch in range(2):
            seed = derive(3, "shuffle", 1, number, epoch)
            generator = torch.Generator().manual_seed(seed)
            for chosen in torch.randperm(COUNT, generator=generator).split(5):
                yield examples.x[chosen], examples.y[chosen]


# ---- steps


@pytest.mark.parametrize(
    ("choice", "moments"),
    [
        (OptimizerChoice(), {"step": "step", "mean": "exp_avg"}),
        (OptimizerChoice(weight_decay=0.1), {"square": "exp_avg_sq"}),
        (OptimizerChoice("sgd"), {}),
        (OptimizerChoice("sgd", 0.9), {"velocity": "momentum_buffer"}),
        (OptimizerChoice("sgd", 0.9, 0.1), {"velocity": "momentum_buffer"}),
        (OptimizerChoice("sgd", 0.9, 0.1, True), {"velocity": "momentum_buffer"}),
    ],
    ids=repr,
)
def test_two_rounds_are_one_unbroken_run_of_torchs_optimizer(examples, choice, moments):
    leaves, state = linear(), {}
    for number in (1, 2):
        # A new process: only the values and the state remain.
        leaves = {n: torch.nn.Parameter(p.detach().clone()) for n, p in leaves.items()}
        done = train(leaves, examples, number=number, state=state, optimizer=choice)
        state = done.optimizer_state

    plain = linear()
    given = {"lr": RATE, "weight_decay": choice.weight_decay, "fused": True}
    if choice.name == "sgd":
        given |= {"momentum": choice.momentum, "nesterov": choice.nesterov}
        torchs = torch.optim.SGD(plain.values(), **given)
    else:
        torchs = torch.optim.Adam(plain.values(), **given)
    for x, y in batches_of(examples):
        torchs.zero_grad()
        cross_entropy(plain)(x, y).backward()
        torchs.step()
    for name, leaf in plain.items():
        assert torch.equal(leaves[name], leaf), name
        for ours, theirs in moments.items():
            expected = torchs.state[leaf][theirs].numpy()
            np.testing.assert_array_equal(state[f"{ours}/{name}"], expected)
    if not moments:
        assert state.keys() == {"rate", "best", "stale"}


def test_mixed_precision_computes_in_bfloat16_what_is_kept_in_float32(examples):
    leaves, seen = linear(), []

    def lost(x, y):
        logits = functional.linear(x, leaves["w"], leaves["b"])
        seen.append(logits.dtype)
        return functional.cross_entropy(logits, y)

    train(leaves, examples, objective=lost, precision="bfloat16")

    # By hand: inputs and parameters are rounded, gradients come back whole.
    plain = linear()
    adam = torch.optim.Adam(plain.values(), lr=RATE, fused=True)
    for x, y in batches_of(examples, [1]):
        rounded = (part.bfloat16() for part in (x, plain["w"], plain["b"]))
        adam.zero_grad()
        functional.cross_entropy(functional.linear(*rounded).float(), y).backward()
        adam.step()
    exact = linear()
    train(exact, examples)
    for name, leaf in plain.items():
        assert leaves[name].dtype == torch.float32
        assert torch.equal(leaves[name], leaf), name
        assert not torch.equal(leaves[name], exact[name])
    assert {*seen} == {torch.bfloat16}


def test_a_step_of_adam_is_its_size_times_the_mean_gradient(examples):
    leaves, sizes = linear(), []
    places, gradients = [leaves["w"].detach().clone()], []

    def slope(x, y):
        gradients.append(x.sum(0).expand(CLASSES, -1) + 1)
        return (leaves["w"] * gradients[-1]).sum()

    def note(step_size):
        sizes.append(step_size("w"))
        places.append(leaves["w"].detach().clone())

    train(leaves, examples, objective=slope, rates={"w": 3.0}, after_step=note)

    mean = square = 0.0
    for step, (gradient, size) in enumerate(zip(gradients, sizes, strict=True), 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        root = (square / (1 - 0.999**step)).sqrt()
        torch.testing.assert_close(size, 3.0 * RATE / (root + 1e-8))
        torch.testing.assert_close(
            places[step - 1] - places[step], size * mean / (1 - 0.9**step)
        )


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.75, False), (0.75, True)]
)
def test_a_step_of_sgd_is_its_size_times_the_mean_gradient(
    examples, momentum, nesterov
):
    """Gradients that stay: the velocity is their sum, 1 / (1 - momentum) of them."""
    leaves, slope = {"w": torch.nn.Parameter(torch.zeros(3))}, torch.tensor([1, -2, 9])
    sizes, places = [], []

    def note(step_size):
        sizes.append(step_size("w"))
        places.append(leaves["w"].detach().clone())

    train(
        leaves,
        examples,
        objective=lambda x, y: (leaves["w"] * slope).sum(),
        optimizer=OptimizerChoice("sgd", momentum, nesterov=nesterov),
        epochs=60,
        batch_size=COUNT,
        rates={"w": 3.0},
        after_step=note,
    )

    expected = torch.full((3,), 3 * RATE / (1 - momentum))
    assert all(torch.equal(size, expected) for size in sizes)
    torch.testing.assert_close(places[-2] - places[-1], sizes[-1] * slope)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_factor_scales_the_rate_of_its_parameter_alone(examples, name):
    def moved(rate, **rates):
        leaves = linear()
        leaves["b"].data += 1
        train(
            leaves,
            examples,
            objective=lambda x, y: sum((leaf**2).sum() for leaf in leaves.values()),
            optimizer=OptimizerChoice(name),
            learning_rate=rate,
            rates=rates,
        )
        return leaves

    plain, double, mixed = moved(RATE), moved(2 * RATE), moved(RATE, w=2.0)
    assert torch.equal(mixed["w"], double["w"])
    assert torch.equal(mixed["b"], plain["b"])
    assert torch.equal(moved(RATE, w=0.0)["w"], linear()["w"])


def test_the_loss_is_the_mean_over_the_examples_of_the_last_epoch(examples):
    values, leaves = iter([7.0] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0]), linear()
    done = train(
        leaves, examples, objective=lambda x, y: leaves["b"].sum() * 0 + next(values)
    )
    assert done.loss == pytest.approx((5 * (1 + 2 + 3 + 4) + 3 * 5) / COUNT)
    assert done.metrics() == {
        "loss": done.loss,
        "valid_loss": 1.0,
        "valid_accuracy": 0.5,
    }


def test_a_client_without_training_examples_has_no_loss():
    done = train(linear(), NOTHING)
    assert math.isnan(done.loss)
    assert "loss" not in done.metrics()
    assert "step/w" not in done.optimizer_state


def test_a_last_batch_that_normalisation_cannot_take_joins_the_one_before(examples):
    def sizes(count, batch, smallest=2):
        return [len(one) for one in in_batches(torch.arange(count), batch, smallest)]

    assert sizes(7, 3) == [3, 4]
    assert sizes(8, 3) == [3, 3, 2]
    assert sizes(7, 3, smallest=1) == [3, 3, 1]
    assert sizes(1, 3) == sizes(0, 3) == []

    body = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    for count, steps in ((COUNT, 2), (1, 0)):  # of COUNT one is left over
        done = train(
            dict(body.named_parameters()),
            Examples(examples.x[:count], examples.y[:count]),
            objective=lambda x, y: functional.cross_entropy(body.train()(x), y),
            batch_size=COUNT - 1,
            smallest_batch=2,
        )
        assert done.steps == steps


def dropped(examples, **given):
    """Return what dropout leaves of ones, step by step."""
    leaves, seen = linear(), []

    def objective(x, y):
        seen.append(tuple(functional.dropout(torch.ones(64)).tolist()))
        return cross_entropy(leaves)(x, y)

    train(leaves, examples, objective=objective, **given)
    return seen


def test_dropout_depends_on_seed_client_round_and_epoch(examples):
    before = torch.random.get_rng_state()
    usual = dropped(examples)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)  # by somebody else
    assert dropped(examples) == usual
    assert len({*usual}) == len(usual), "each step its own"
    for other in ({"seed": 4}, {"client": 2}, {"number": 2}):
        assert not {*dropped(examples, **other)} & {*usual}


# ---- the rate, and when a round ends early


def test_the_rate_falls_by_three_after_patience_stagnating_validations(examples):
    losses = [1.0, 0.9, 0.9, 0.95, 0.9, 0.8, 0.8, 0.8, 0.8, 0.7]
    #         new  new  1    2     3:/3 new  1    2    3:/3 new
    rates, leaves, state = [], linear(), {}
    for number, loss in enumerate(losses, 1):
        given = {"number": number, "state": state, "epochs": 1, "lr_patience": 3}
        state = train(leaves, examples, [loss], **given).optimizer_state
        rates.append(float(state["rate"]))
    expected = [RATE] * 4 + [RATE / 3] * 4 + [RATE / 9] * 2
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    assert float(state["best"]) == 0.7


def test_the_falling_rate_is_used_at_once(examples):
    leaves, seen = linear(), []
    train(
        leaves,
        examples,
        objective=lambda x, y: leaves["w"].sum(),  # of gradient 1, as its root is
        epochs=3,
        lr_patience=1,
        batch_size=COUNT,
        after_step=lambda step_size: seen.append(float(step_size("w")[0, 0])),
    )
    np.testing.assert_allclose(seen, [RATE, RATE, RATE / 3])


def test_training_stops_for_good_when_the_rate_is_too_small(examples):
    leaves, steps = linear(), []
    given = {"lr_patience": 1, "batch_size": COUNT, "after_step": steps.append}
    done = train(leaves, examples, epochs=9, learning_rate=2e-7, **given)
    assert len(steps) == 2  # a new best, then one stagnation, then 6.7e-8
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}

    later = train(leaves, examples, [0.1], 2, done.optimizer_state, **given)

    assert len(steps) == 2
    assert all(torch.equal(leaves[name], before[name]) for name in leaves)
    assert math.isnan(later.loss)
    assert later.valid == Score(0.1, 0.5)
    train(leaves, examples, epochs=1, learning_rate=1e-7, **given)
    assert len(steps) == 3


def test_without_validation_examples_the_rate_stays(examples):
    done = train(linear(), examples, [math.nan], epochs=9, lr_patience=1)
    assert float(done.optimizer_state["rate"]) == RATE
    assert "valid_loss" not in done.metrics()


@pytest.mark.parametrize(
    ("losses", "patience", "expected"),
    [
        ([3.0] * 5, 2, 3),
        ([3.0, 4.0, 2.0, 2.5, 2.0, 1.0], 2, 5),
        ([3.0, 4.0, 2.0, 2.5, 1.0, 1.0], 2, 6),
        ([5.0, 4.0, 3.0, 2.0, 1.0], 2, 5),
        ([3.0] * 9, 0, 9),
    ],
)
def test_a_round_ends_after_so_many_stagnating_epochs(
    examples, losses, patience, expected
):
    given = {"early_stopping_patience": patience, "epochs": len(losses)}
    done = train(linear(), examples, losses, **given)
    assert done.steps == expected * math.ceil(COUNT / 5)
    assert done.valid.loss == losses[expected - 1]
    assert float(done.optimizer_state["rate"]) == RATE


def test_a_round_is_compared_with_itself_and_counts_anew(examples):
    state, given = {}, {"early_stopping_patience": 2, "batch_size": COUNT}
    for number, (losses, epochs) in enumerate(
        # The second is worse than all of the first, but getting better.
        [([1.0] * 4, 3), ([9.0, 8.0, 7.0, 6.0], 4), ([9.0] * 5, 3)],
        1,
    ):
        given["epochs"] = len(losses)
        done = train(linear(), examples, losses, number, state, **given)
        state = done.optimizer_state
        assert done.steps == epochs


def test_the_rate_falls_in_the_epoch_that_ends_a_round(examples):
    given = {"early_stopping_patience": 2, "lr_patience": 2, "batch_size": COUNT}
    done = train(linear(), examples, epochs=9, **given)
    assert done.steps == 3
    assert float(done.optimizer_state["rate"]) == pytest.approx(RATE / 3)


# ---- scores


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
    nothing = score(lambda x: x, NOTHING)
    assert math.isnan(nothing.loss)
    assert math.isnan(nothing.accuracy)


# ---- leaves that have gradients at different times

SHAPES = {"w": (5, 3), "b": (5,), "head": (2, 5), "scalar": ()}


def leaves_of():
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


def stepped(leaves, step, state=None):
    """Take a step of Adam; ``head`` has a gradient only in every other one."""
    adam = Optimizer(OptimizerChoice(), leaves, RATE, fused=True)
    adam.restore(state or {})
    give_gradients(leaves, step)
    adam.step()
    return adam.moments()


def give_gradients(leaves, step):
    generator = torch.Generator().manual_seed(100 + step)
    for name, leaf in leaves.items():
        gradient = torch.randn(leaf.shape, generator=generator)
        leaf.grad = None if name == "head" and step % 2 else gradient


def test_a_leaf_that_never_has_a_gradient_has_no_moments():
    leaves = leaves_of()
    before = leaves["head"].detach().clone()
    moments = stepped(leaves, 1)
    assert torch.equal(leaves["head"], before)
    assert {key.split("/")[1] for key in moments} == {"w", "b", "scalar"}


@pytest.mark.parametrize("missing", [["head"], ["w", "b"]])
def test_a_leaf_without_a_state_begins_anew_beside_one_that_goes_on(missing):
    leaves = leaves_of()
    moments = stepped(leaves, 0)
    state = {k: v for k, v in moments.items() if k.split("/")[1] not in missing}
    before = {name: np.array(array) for name, array in state.items()}

    after = stepped(leaves, 2, state)

    steps = {name: float(after[f"step/{name}"]) for name in SHAPES}
    assert steps == {name: 1.0 if name in missing else 2.0 for name in SHAPES}
    for name, array in state.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "choice",
    [OptimizerChoice(), OptimizerChoice("sgd", 0.9, 0.1), OptimizerChoice("sgd")],
    ids=repr,
)
def test_a_leaf_whose_first_gradient_comes_late_begins_then(choice, fused):
    ours, theirs = leaves_of(), leaves_of()
    optimizer = Optimizer(choice, ours, RATE, fused=fused)
    # One group a leaf: torch's fused SGD takes no mixture of new leaves and old ones.
    groups = [{"params": [leaf]} for leaf in theirs.values()]
    given = {"lr": RATE, "weight_decay": choice.weight_decay, "fused": fused}
    if choice.name == "sgd":
        plain = torch.optim.SGD(groups, momentum=choice.momentum, **given)
    else:
        plain = torch.optim.Adam(groups, **given)
    for step in (1, 2, 3, 4):  # ``head`` has none in the first
        give_gradients(ours, step)
        give_gradients(theirs, step)
        optimizer.step()
        plain.step()
    for name, leaf in theirs.items():
        assert torch.equal(ours[name], leaf)


def test_gradients_end_with_the_training(examples):
    leaves = linear()
    train(leaves, examples)
    assert [leaf.grad for leaf in leaves.values()] == [None, None]


def test_of_heads_that_are_as_confident_the_first_answers():
    first = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7]])
    second = torch.tensor([[0.1, 0.0, 0.9], [0.2, 0.6, 0.2], [0.7, 0.2, 0.1]])

    tasks, places = most_confident([first, second])

    assert tasks.tolist() == [0, 1, 0]
    assert places.tolist() == [0, 1, 1]
