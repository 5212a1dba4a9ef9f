"""FedSSI: the surrogate's way and the penalty by plain autograd, and whole runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from fedweit_cases import data, linear_model
from resuming import check_resumed, small
from torch import nn

from clients.fedavg import Sgd
from clients.fedssi import FedSsi
from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.fedavg import FedAvg
from strategies.fedssi import FedSsiParams

BODY = ("body.0.weight", "body.0.bias")


def place(client=0, batch=100, **training):
    chosen = {"epochs": 2, "batch_size": batch, "learning_rate": 0.02} | training
    return ClientContext(client=client, seed=0, training=Training(**chosen))


def learner(network=None, client=0, batch=100, **params):
    return FedSsi(
        FedSsiParams(**params), network or linear_model(), place(client, batch)
    )


def received(seed):
    draw = np.random.default_rng(seed)
    shapes = {"body.0.weight": (6, 4), "body.0.bias": (6,)}
    return {
        "base": {n: draw.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    }


def at(number, task, *, starts=False, ends=False):
    return TaskStage(round=number, task=task, starts_task=starts, ends_task=ends)


ONLY = {"starts": True, "ends": True}


def walk(start, center, heads, examples, steps, rate, share):
    """Return Omega by plain autograd: all examples are in each step."""
    v = {n: torch.tensor(start[n]).double() for n in BODY}
    head, offset = (torch.tensor(values).double() for values in heads)
    s = {n: torch.zeros_like(value) for n, value in v.items()}
    for _ in range(steps):
        leaves = [v[n].clone().requires_grad_() for n in BODY]
        leaves += [head.clone().requires_grad_(), offset.clone().requires_grad_()]
        w, b, top, bias = leaves
        logits = torch.tanh(examples.x.double() @ w.T + b) @ top.T + bias
        log_p = logits - logits.exp().sum(1, keepdim=True).log()
        loss = -log_p[range(len(examples.y)), examples.y].mean()
        g = torch.autograd.grad(loss, leaves)
        for name, gradient in zip(BODY, g, strict=False):
            q = (1 - share) / (2 * share)
            pulled = q * (v[name] - torch.tensor(center[name]).double())
            step = -rate * (gradient + pulled)
            s[name] -= gradient * step
            v[name] = v[name] + step
        head, offset = head - rate * g[2], offset - rate * g[3]
    return s, {n: v[n] - torch.tensor(start[n]).double() for n in BODY}


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_importance_is_what_a_weight_gained_on_the_surrogates_way(share):
    given = {"surrogate_rate": 0.3, "surrogate_epochs": 4, "damping": 0.05}
    ssi = learner(locality=share, **given)
    first, second = received(1), received(2)

    state, _ = ssi.train({}, first, at(1, 0, starts=True), data(1))
    assert "omega" not in state
    state, _ = ssi.train(state, second, at(2, 0, ends=True), data(1))

    heads = [state["heads"][f"heads.0.{part}"] for part in ("weight", "bias")]
    s, way = walk(first["base"], second["base"], heads, data(1).train, 4, 0.3, share)
    for name in BODY:
        expected = s[name].clamp(min=0) / (way[name] ** 2 + 0.05)
        np.testing.assert_allclose(
            state["omega"][name], expected, rtol=1e-3, atol=1e-6, err_msg=name
        )
    if share == 0.2:
        assert any((values < 0).any() for values in s.values()), "some are cut at 0"
    assert any(values.max() > 0.01 for values in state["omega"].values())


def test_importances_of_tasks_add_up_and_the_surrogate_leaves_nothing_behind():
    ssi, plain = learner(strength=0.0), Sgd(Params(), linear_model(), place())
    state, update = ssi.train({}, received(1), at(1, 0, **ONLY), data(1))
    _, expected = plain.train({}, received(1), at(1, 0, **ONLY), data(1))
    for name in BODY:
        np.testing.assert_array_equal(
            update.payload["base"][name], expected.payload["base"][name]
        )
    later, _ = ssi.train(state, received(2), at(2, 1, **ONLY), data(2))
    alone, _ = learner(strength=0.0).train({}, received(2), at(2, 1, **ONLY), data(2))
    for name in BODY:
        np.testing.assert_allclose(
            later["omega"][name], state["omega"][name] + alone["omega"][name], rtol=1e-5
        )
    assert later["anchor"] == {}
    heads = {"heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias"}
    assert set(later["heads"]) == heads


def by_hand(start, anchor, omega, strength, epochs, task=1):
    """Return the body after Adam on the loss with the penalty."""
    oracle = linear_model()
    named = dict(oracle.named_parameters())
    with torch.no_grad():
        for name in BODY:
            named[name].copy_(torch.tensor(start[name]))
    trained = [*oracle.body.parameters(), *oracle.heads[task].parameters()]
    optimizer = torch.optim.Adam(trained, lr=0.02)
    examples = data(2).train
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(oracle(examples.x, task), examples.y)
        for name in BODY:
            far = (named[name] - torch.tensor(anchor[name])) ** 2
            loss = loss + strength * (torch.tensor(omega[name]) * far).sum()
        loss.backward()
        optimizer.step()
    return {name: named[name].detach().numpy() for name in BODY}


def test_a_later_task_is_held_at_the_global_model_of_its_beginning():
    ssi = learner(strength=3.0)
    omega = {n: np.abs(values) for n, values in received(7)["base"].items()}
    first, second = received(1)["base"], received(2)["base"]

    state = {"omega": omega}
    state, update = ssi.train(state, {"base": first}, at(3, 1, starts=True), data(2))
    expected = by_hand(first, first, omega, 3.0, epochs=2)
    for name in BODY:
        np.testing.assert_allclose(
            update.payload["base"][name], expected[name], atol=1e-4
        )

    # In the next round the client begins elsewhere, but the anchor stays.
    state = {**state, "optimizer": {}, "heads": {}}
    _, update = ssi.train(state, {"base": second}, at(4, 1), data(2))
    expected = by_hand(second, first, omega, 3.0, epochs=2)
    for name in BODY:
        np.testing.assert_allclose(
            update.payload["base"][name], expected[name], atol=1e-4
        )


def test_a_task_that_begins_drops_the_anchor_of_one_whose_end_was_missed():
    ssi = learner()
    state, _ = ssi.train({}, received(1), at(1, 0, starts=True), data(1))
    state, _ = ssi.train(state, received(2), at(5, 1, starts=True), data(2))
    for name in BODY:
        np.testing.assert_array_equal(state["anchor"][name], received(2)["base"][name])


def test_without_examples_nothing_is_important():
    some = data(1)
    none = replace(some, train=Examples(some.train.x[:0], some.train.y[:0]))
    state, _ = learner().train({}, received(1), at(1, 0, **ONLY), none)
    assert not any(values.any() for values in state["omega"].values())


def test_a_surrogate_that_diverges_is_refused():
    linear = MultiHeadModel(
        nn.Sequential(nn.Linear(4, 6)),
        features=6,
        input_shape=(4,),
        tasks=1,
        classes=2,
        single_head=False,
    )
    ssi = learner(linear, locality=1.0, surrogate_rate=1e38)
    with pytest.raises(
        ConfigError, match=r"strategy\.surrogate_rate: got 1e\+38, expected one with"
    ):
        ssi.train({}, received(1), at(1, 0, **ONLY), data(1))


def test_the_order_of_the_surrogates_examples_is_the_clients_own_and_repeats():
    def found(client):
        ssi = learner(client=client, batch=7)
        start, stage = received(1)["base"], at(1, 0, **ONLY)
        return ssi.importance(start, start, stage, data(1).train)["body.0.weight"]

    np.testing.assert_array_equal(found(0), found(0))
    assert not np.array_equal(found(0), found(1))


def normalised():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    return MultiHeadModel(
        body, features=6, input_shape=(4,), tasks=2, classes=2, single_head=False
    )


def test_statistics_of_normalisation_are_not_weights():
    network = normalised()
    sent = {"base": snapshot(network, network.shared_names())}
    state, _ = learner(network).train({}, sent, at(1, 0, **ONLY), data(1))
    assert set(state["omega"]) == {
        f"body.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")
    }


def test_the_surrogate_trains_with_dropout_that_repeats_and_differs_by_round():
    def found(number):
        network = normalised()
        torch.manual_seed(number)  # what else draws must not matter
        torch.rand(3)
        network.eval()
        start = snapshot(network, network.shared_names())
        ssi, stage = learner(network), at(min(number, 2), 0, **ONLY)
        return ssi.importance(start, start, stage, data(1).train)["body.0.weight"]

    np.testing.assert_array_equal(found(2), found(3))
    assert np.abs(found(1) - found(2)).max() > 0.01 * found(1).max()


def test_a_step_beyond_the_global_model_is_refused():
    # q = 0.8 / 0.4 = 2, so that a step of 0.5 arrives.
    algorithm("fedssi").params({"locality": 0.2, "surrogate_rate": 0.5})
    with pytest.raises(
        ConfigError, match=r"surrogate_rate: got 0\.6, expected at most 0\.5 with"
    ):
        algorithm("fedssi").params({"locality": 0.2, "surrogate_rate": 0.6})
    algorithm("fedssi").params({"locality": 1.0, "surrogate_rate": 60.0})


@pytest.mark.parametrize("odd", ["omega", "anchor"])
def test_an_update_with_what_should_have_stayed_is_refused(odd):
    strategy = FedAvg(FedSsiParams(), 0)
    state = strategy.init(received(1)["base"])
    with pytest.raises(WireError, match="groups"):
        strategy.check_update(state, Update({**state, odd: state["base"]}, 1))


# ---- whole runs


def forgetting(folder, **given):
    shape = {"tasks": 4, "rounds": 2, "epochs": 4, "learning_rate": 3e-3, "clients": 2}
    run_in_process(tiny(folder, **shape, **given))
    return summary_of(folder)


def test_what_is_held_is_forgotten_less(tmp_path):
    found = {
        strength: forgetting(
            tmp_path / str(strength),
            strategy="fedssi",
            **{"strategy.strength": strength},
        )
        for strength in (0.0, 100.0)
    }
    plain = forgetting(tmp_path / "fedavg", strategy="fedavg")
    assert found[0.0]["client_accuracy"] == plain["client_accuracy"]
    assert found[100.0]["forgetting"] < 0.7 * plain["forgetting"]
    assert found[100.0]["average_accuracy"] > plain["average_accuracy"]
    assert found[100.0]["bytes_up"] == plain["bytes_up"]


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    # Within the second task.
    check_resumed(tmp_path, small(rounds=2, epochs=2, strategy="fedssi"), 4)
