"""Replay, with and without regularization: what is trained on, and what is kept."""

import numpy as np
import pytest
import torch
from class_streams import FIRST, SECOND, THIRD, data, model, moved, place, start
from fakes import run_in_process, summary_of, tiny
from torch import nn
from watched_fit import Watched

from clients.replay import Replay
from fcl_flower.algorithms.base import Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import load
from strategies.replay import ReplayParams


def learner(where=None, **params):
    return Replay(ReplayParams(**params), model(), where or place())


@pytest.mark.parametrize("strength", [0.0, 1e3])
def test_the_first_task_is_plain_training(strength):
    where = place(epochs=3)
    plain = LocalTraining(Params(), model(), where)
    state, update = learner(where, strength=strength).train(
        Turn({}, start(), FIRST, data(0))
    )
    _, expected = plain.train(Turn({}, start(), FIRST, data(0)))
    for name, values in expected.payload["base"].items():
        np.testing.assert_array_equal(update.payload["base"][name], values)
    # 3 % of 20 is less than one sample of each of the two classes.
    assert sorted(state["memory"]["y"].tolist()) == [0, 1]


def test_a_later_task_is_trained_on_together_with_what_is_remembered():
    one = learner(buffer_fraction=0.2)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    received, (x, y) = moved(start()), data(1).train
    kept = [torch.from_numpy(np.asarray(state["memory"][name])) for name in "xy"]

    after, update = one.train(Turn(state, received, SECOND, data(1)))

    oracle = model()
    load(oracle, received["base"])
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    logits = oracle(torch.cat([x, kept[0]]), 0)
    nn.functional.cross_entropy(logits, torch.cat([y, kept[1].long()])).backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)
    assert update.num_examples == 24
    assert after["memory"]["task"].tolist() == [0] * 4 + [1] * 4


def test_a_fraction_of_a_task_is_kept_once_in_its_first_round():
    one = learner(buffer_fraction=0.2)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state, _ = one.train(Turn(state, start(), SECOND, data(1)))
    after, update = one.train(Turn(state, start(), THIRD, data(1)))
    assert update.num_examples == 24
    assert after["memory"] is state["memory"]
    # So does a client that has lost its memory.
    anew, update = one.train(Turn({}, start(), THIRD, data(1)))
    assert update.num_examples == 20
    assert anew["memory"]["task"].tolist() == [1] * 4


@pytest.mark.parametrize("policy", ["balanced", "herding", "reservoir", "leverage"])
def test_a_fixed_budget_holds_by_any_policy(policy):
    one = learner(budget="fixed", memory_samples=6, memory_policy=policy)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    assert len(state["memory"]["y"]) == 6
    after, update = one.train(Turn(state, start(), THIRD, data(1)))
    assert update.num_examples == 26
    assert len(after["memory"]["y"]) == 6
    assert set(after["memory"]["task"].tolist()) == {0, 1}


# ---- regularization


def test_the_hidden_states_are_held_near_those_of_the_received_model():
    one = learner(buffer_fraction=0.2, strength=3.0)
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    received = moved(start())
    one.train(Turn(state, received, SECOND, data(1)))
    load(one.model, received["base"])
    with torch.no_grad():
        one.model.body[0].bias.add_(0.5)
    rows = torch.tensor([1, 21])  # one of the task, and one that is remembered
    x = torch.stack(
        [data(1).train.x[1], torch.from_numpy(state["memory"]["x"][1])]
    ).double()
    labels = torch.tensor([2, 0])

    entropy = torch.nn.functional.cross_entropy(one.model(x.float(), 0), labels)
    found = watched.loss_of(x.float(), labels, rows) - entropy
    (gradient,) = torch.autograd.grad(found, [one.model.body[0].weight])
    weight, bias = (
        received["base"][f"body.0.{n}"].astype(np.float64) for n in ("weight", "bias")
    )

    def by_hand(new_weight, new_bias):
        new, old = (
            np.tanh(x.numpy() @ w.T + b)
            for w, b in ((new_weight, new_bias), (weight, bias))
        )
        return 3.0 * np.sum((new - old) ** 2) / 8  # two samples of four features

    assert float(found.detach()) == pytest.approx(by_hand(weight, bias + 0.5), rel=1e-5)
    for entry in np.ndindex(4, 3):
        step = np.zeros((4, 3))
        step[entry] = 1e-5
        slope = by_hand(weight + step, bias + 0.5) - by_hand(weight - step, bias + 0.5)
        assert float(gradient[entry]) == pytest.approx(slope / 2e-5, abs=1e-5)


def test_replay_reg_is_replay_with_a_strength_above_0():
    assert algorithm("replay").params({}).strength == 0
    assert algorithm("replay-reg").params({}).strength == 1
    sides = {algorithm(name).client for name in ("replay", "replay-reg")}
    assert sides == {"clients.replay:Replay"}


# ---- runs


def test_concepts_with_identities_can_be_replayed(tmp_path):
    given = {"scenario.reveal_ids": True, "classes_per_task": 0}
    run = resolve(tiny(tmp_path, strategy="replay", scenario="concepts", **given))
    build.validate(run)
    assert run.config.model.head == "single"


def first_task_at_the_end(folder, strategy):
    params = {} if strategy == "finetune" else {"strategy.buffer_fraction": 0.1}
    config = tiny(
        folder,
        strategy=strategy,
        dataset="digits",
        scenario="classes",
        head="single",
        rounds=4,
        epochs=5,
        learning_rate=3e-3,
        seed=1,  # with which both clients learn in the same order
        **params,
    )
    run_in_process(config)
    found = summary_of(folder)["client_accuracy"]
    learned = np.mean([matrix[0][0] for matrix in found])
    return learned, np.mean([matrix[1][0] for matrix in found])


@pytest.mark.soak
@pytest.mark.run
def test_replay_forgets_far_less_than_training_on_new_classes_alone(tmp_path):
    found = {
        name: first_task_at_the_end(tmp_path / name, name)
        for name in ("finetune", "replay", "replay-reg")
    }
    assert all(learned > 0.9 for learned, _ in found.values())
    assert found["finetune"][1] < 0.1
    assert found["replay"][1] > 0.5
    assert found["replay-reg"][1] > 0.5
