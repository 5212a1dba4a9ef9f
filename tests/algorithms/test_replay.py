"""Replay, with and without regularization: what is trained on, and what is kept."""

import numpy as np
import pytest
import torch
from class_streams import FIRST, SECOND, THIRD, data, model, moved, place, start
from torch import nn

from clients.replay import Replay
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.training.tensors import load
from strategies.replay import ReplayParams


def learner(where=None, **params):
    return Replay(ReplayParams(**params), model(), where or place())


def test_a_later_task_is_trained_on_together_with_what_is_remembered():
    one = learner(buffer_fraction=0.2)
    state, _ = one.train({}, start(), FIRST, data(0))
    received, (x, y) = moved(start()), data(1).train
    kept = [torch.from_numpy(np.asarray(state["memory"][name])) for name in "xy"]

    after, update = one.train(state, received, SECOND, data(1))

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
    state, _ = one.train({}, start(), FIRST, data(0))
    state, _ = one.train(state, start(), SECOND, data(1))
    after, update = one.train(state, start(), THIRD, data(1))
    assert update.num_examples == 24
    assert after["memory"] is state["memory"]
    # So does a client that has lost its memory.
    anew, update = one.train({}, start(), THIRD, data(1))
    assert update.num_examples == 20
    assert anew["memory"]["task"].tolist() == [1] * 4


# ---- regularization


def test_the_hidden_states_are_held_near_those_of_the_received_model():
    one = learner(buffer_fraction=0.2, strength=3.0)
    state, _ = one.train({}, start(), FIRST, data(0))
    received = moved(start())
    one.train(state, received, SECOND, data(1))
    load(one.model, received["base"])
    with torch.no_grad():
        one.model.body[0].bias.add_(0.5)
    rows = torch.tensor([1, 21])  # one of the task, and one that is remembered
    x = torch.stack(
        [data(1).train.x[1], torch.from_numpy(state["memory"]["x"][1])]
    ).double()
    hidden = one.model.body(x.float())

    found = one.penalty(rows, hidden)
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
