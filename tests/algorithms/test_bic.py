"""BiC: two stages, and what travels of the second."""

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    NONE,
    SECOND,
    THIRD,
    check_loss,
    data,
    five_and_five,
    logits_of,
    model,
    moved,
    place,
    same,
    slopes,
    softmax,
    start,
)
from fakes import exact
from watched_fit import Watched

from clients.bic import Bic, fold_bias, hold_out
from fcl_flower.algorithms.base import ModelShape, Params, ServerContext, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.bic import Bic as Server
from strategies.bic import BicParams


def learner(samples=12, where=None, **more):
    return Bic(BicParams(memory_samples=samples, **more), model(), where or place())


def plain(base=None):
    """Return what a client receives before any correction."""
    ones = np.ones(6, np.float32)
    return {**(base or start()), "bias": {"scale": ones, "shift": 0 * ones}}


def correction(scale, shift, classes):
    found = {"scale": np.ones(6, np.float32), "shift": np.zeros(6, np.float32)}
    found["scale"][classes], found["shift"][classes] = scale, shift
    return found


def held_out(watched, new, memory):
    """Return the samples of a task and a memory that the first stage did not see."""
    x = torch.cat([new.x, torch.as_tensor(memory["x"])])
    y = torch.cat([new.y, torch.as_tensor(memory["y"]).long()])
    seen = (x[:, None] == watched.examples.x[None]).all(2).any(1)
    return Examples(x[~seen], y[~seen])


# ---- first stage


@pytest.mark.parametrize("growing", [True, False])
def test_the_loss_of_a_third_task_and_its_gradient_by_numpy(growing):
    one = learner(12, place(learning_rate=1e-12), temperature=2.5)
    watched = Watched(one)
    state, _ = one.train(Turn({}, plain(), FIRST, data(0)))
    state, _ = one.train(Turn(state, plain(), SECOND, data(1)))
    state, _ = one.train(Turn(state, plain(), THIRD, data(1)))
    if growing:
        one.model.restrict_head(range(5))
    else:
        one.model.restrict_head(range(6))
    old = moved(start())
    task = data(2)
    if growing:  # the last class does not exist yet
        task = TaskData(Examples(task.train.x, task.train.y * 0 + 4), *rest(task))
    received = {**old, "bias": correction(0.5, -0.75, [2, 3])}
    one.train(Turn(state, received, FOURTH, task))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    rows = torch.tensor([3, 0, 11, 7])
    x, y = task.train.x[:4], task.train.y[:4]
    # Which samples of the batch the rows are, the teacher knows.
    watched["taught"].logits[rows] = torch.from_numpy(corrected(old["base"], x)).float()

    classes = 5 if growing else 6

    def by_hand(weight):
        z = logits_of({**now, "heads.0.weight": weight}, x)[:, :classes]
        entropy = -np.log(softmax(z))[range(4), y].mean()
        q, p = softmax(z[:, :4] / 2.5), softmax(corrected(old["base"], x)[:, :4] / 2.5)
        taught = (p * (np.log(p) - np.log(q))).sum(1).mean()
        return 4 / classes * taught + (1 - 4 / classes) * entropy

    check_loss(watched, x, y, rows, by_hand)


def test_labels_count_where_a_task_has_no_new_class():
    one = learner(12, place(learning_rate=1e-12))
    watched = Watched(one)
    state, _ = one.train(Turn({}, plain(), FIRST, data(0)))
    task = TaskData(Examples(data(1).train.x, data(0).train.y), NONE, NONE, classes=6)
    one.train(Turn(state, plain(), FOURTH, task))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    rows, x, y = torch.arange(4), task.train.x[:4], task.train.y[:4]

    def by_hand(weight):
        z = logits_of({**now, "heads.0.weight": weight}, x)[:, :2]
        return -np.log(softmax(z))[range(4), y].mean()

    check_loss(watched, x, y, rows, by_hand)


def corrected(base, x):
    z = logits_of(base, x)
    z[:, 2:4] = 0.5 * z[:, 2:4] - 0.75
    return z


def rest(task):
    return task.valid, task.test, task.classes


def test_the_old_model_speaks_as_it_is_corrected():
    one = learner(12)
    watched = Watched(one)
    state, _ = one.train(Turn({}, plain(), FIRST, data(0)))
    old = moved(start())
    received = {**old, "bias": correction(0.5, -0.75, [2, 3])}
    during, _ = one.train(Turn(state, received, SECOND, data(1)))
    assert len(held_out(watched, data(1).train, state["memory"]).y) == 4
    z = corrected(old["base"], watched.examples.x)
    np.testing.assert_allclose(watched["taught"].logits.numpy(), z, atol=1e-5)
    # and in later rounds of the task, whatever is received then
    one.train(Turn(during, plain(moved(start(), 0.3)), THIRD, data(1)))
    np.testing.assert_allclose(watched["taught"].logits.numpy(), z, atol=1e-5)


def test_the_first_task_is_plain_training_among_the_classes_so_far():
    one, other = learner(), LocalTraining(Params(), model(), place())
    other.model.restrict_head([0, 1])
    state, found = one.train(Turn({}, plain(), FIRST, data(0)))
    _, expected = other.train(Turn({}, start(), FIRST, data(0)))
    assert same(found.payload, expected.payload)
    assert found.payload["bias"]["scale"].tolist() == [1] * 6
    assert found.payload["bias"]["shift"].tolist() == [0] * 6
    assert sorted(state["memory"]["y"].tolist()) == [0] * 6 + [1] * 6


# ---- held out


def test_some_of_each_class_are_held_out_and_one_stays():
    y = torch.tensor([0] * 5 + [1] * 2 + [2])
    given = Examples(torch.arange(8.0)[:, None], y)
    kept, held = hold_out(given, 2, np.random.default_rng(0))
    assert sorted(held.y.tolist()) == [0, 0, 1]
    assert sorted(kept.y.tolist()) == [0, 0, 0, 1, 2]
    both = torch.cat([kept.x, held.x])[:, 0].tolist()
    assert sorted(both) == list(range(8))
    np.testing.assert_array_equal(y[held.x[:, 0].long()], held.y)
    everything, none = hold_out(given, 0, np.random.default_rng(0))
    assert len(everything.y) == 8
    assert len(none.y) == 0


@pytest.mark.parametrize(
    ("fraction", "count"), [(0.01, 1), (0.1, 1), (0.3, 3), (0.9, 9)]
)
def test_as_many_of_a_new_class_are_held_out_as_of_an_old_one(fraction, count):
    one = learner(20, held_out=fraction)
    watched = Watched(one)
    state, update = one.train(Turn({}, plain(), FIRST, data(0, 40)))
    assert update.num_examples == 40
    during, update = one.train(Turn(state, plain(), SECOND, data(1, 40)))
    held = held_out(watched, data(1, 40).train, state["memory"])
    assert np.bincount(held.y).tolist() == [count] * 4
    assert update.num_examples == 60 - 4 * count
    # The same in each round of the task.
    one.train(Turn(during, plain(moved(start())), THIRD, data(1, 40)))
    again = held_out(watched, data(1, 40).train, state["memory"])
    assert torch.equal(again.x, held.x)


# ---- second stage


def test_the_correction_minimises_the_entropy_of_what_was_held_out():
    one = learner(20, held_out=0.5, bias_epochs=1500)
    watched = Watched(one)
    state, _ = one.train(Turn({}, plain(), FIRST, data(0, 40)))
    _, update = one.train(Turn(state, plain(), THIRD, data(1, 40)))
    bias, base = update.payload["bias"], update.payload["base"]
    held = held_out(watched, data(1, 40).train, state["memory"])
    z, y = logits_of(base, held.x)[:, :4], held.y.numpy()

    def entropy(numbers):
        shown = np.concatenate([z[:, :2], numbers[0] * z[:, 2:] + numbers[1]], axis=1)
        return -np.log(softmax(shown))[range(len(y)), y].mean()

    best = np.array([bias["scale"][2], bias["shift"][2]], np.float64)
    assert bias["scale"][[0, 1, 4, 5]].tolist() == [1] * 4
    assert bias["shift"][[0, 1, 4, 5]].tolist() == [0] * 4
    assert bias["scale"][2] == bias["scale"][3]
    assert entropy(best) < entropy(np.array([1.0, 0.0])) - 1e-3
    np.testing.assert_allclose(slopes(entropy, best), 0, atol=5e-3)


def test_without_a_second_stage_or_a_memory_nothing_is_corrected():
    for one in (learner(20, bias_epochs=0), learner(0)):
        state, _ = one.train(Turn({}, plain(), FIRST, data(0)))
        _, update = one.train(Turn(state, plain(), THIRD, data(1)))
        assert update.payload["bias"]["scale"].tolist() == [1] * 6
        assert update.payload["bias"]["shift"].tolist() == [0] * 6


def test_the_network_is_not_moved_by_the_second_stage():
    updates = []
    for epochs in (0, 50):
        one = learner(20, bias_epochs=epochs)
        state, _ = one.train(Turn({}, plain(), FIRST, data(0)))
        updates.append(one.train(Turn(state, plain(), THIRD, data(1)))[1].payload)
    assert same(*updates)
    assert updates[1]["bias"]["scale"][2] != 1


def test_a_prediction_is_corrected():
    x = data(1).test.x
    received = {**start(), "bias": correction(0.5, -0.75, [2, 3])}
    logits = learner().predict({}, received, 0, x).detach()
    np.testing.assert_allclose(logits, corrected(start()["base"], x), atol=1e-5)
    assert same({"base": fold_bias(start()["base"], plain()["bias"])}, start())


# ---- server


def server():
    return Server(BicParams(), ServerContext(0, ModelShape(classes=6)))


def test_both_are_averaged_by_examples():
    one = server()
    state = one.init(start()["base"])
    assert state["bias"]["scale"].tolist() == [1] * 6
    assert state["bias"]["shift"].tolist() == [0] * 6
    sent = {
        0: Update({**start(), "bias": correction(0.5, 1.0, [2, 3])}, 10),
        1: Update({**moved(start()), "bias": correction(0.8, -1.0, [2])}, 30),
    }
    new = one.combine(state, FIRST, sent)
    expected = np.array([1, 1, (0.5 + 3 * 0.8) / 4, (0.5 + 3) / 4, 1, 1])
    np.testing.assert_allclose(new["bias"]["scale"], expected, rtol=1e-6)
    np.testing.assert_allclose(new["bias"]["shift"][:4], [0, 0, -0.5, 0.25])
    for name, values in start()["base"].items():
        mean = (values + 3 * moved(start())["base"][name]) / 4
        np.testing.assert_allclose(new["base"][name], mean, rtol=1e-5)
    nothing = {0: Update(sent[0].payload, 0)}
    assert exact(one.combine(state, FIRST, nothing)) == exact(state)


# ---- runs


@pytest.mark.soak
@pytest.mark.run
def test_new_digits_are_no_longer_preferred(tmp_path):
    as_learned, corrected = (
        five_and_five(
            tmp_path / str(epochs),
            "bic",
            **{"strategy.memory_samples": 20, "strategy.bias_epochs": epochs},
        )
        for epochs in (0, 100)
    )
    assert corrected[0] > as_learned[0] + 0.02
    assert corrected.mean() > as_learned.mean()
