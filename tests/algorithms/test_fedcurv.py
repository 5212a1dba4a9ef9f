"""FedCurv: sums against the penalty of each other client, and the server by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from lone_learner import data, gradients, model, place, shared, stage
from torch import nn
from watched_fit import Watched

from clients.fedcurv import FedCurv as Learner
from fcl_flower.algorithms.base import ServerContext, Turn
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Update
from fcl_flower.data.examples import Examples
from strategies.fedcurv import FISHER, WEIGHTED, FedCurv, FedCurvParams

RATE, STEPS, STRENGTH = 0.1, 3, 0.7
NOW = stage(1)


def learner(strength=STRENGTH, fisher_examples=200, **training):
    params = FedCurvParams(strength=strength, fisher_examples=fisher_examples)
    return Learner(params, model(), place(**{"epochs": STEPS} | training))


def others(seed=1):
    """Return models and diagonals of two other clients, by client."""
    rng = np.random.default_rng(seed)
    base = shared(model())["base"]
    return {
        client: {
            "w": {n: np.float32(rng.normal(size=v.shape)) for n, v in base.items()},
            "fisher": {n: np.float32(rng.random(v.shape)) for n, v in base.items()},
        }
        for client in (1, 2)
    }


def update_of(known, examples=1):
    weighted = {n: f * known["w"][n] for n, f in known["fisher"].items()}
    payload = {"base": known["w"], FISHER: known["fisher"], WEIGHTED: weighted}
    return Update(payload, examples)


def quadratic(network, known, strength=STRENGTH):
    """Return the paper's penalty, client by client."""
    parameters = dict(network.named_parameters())
    return sum(
        strength * (torch.from_numpy(one["fisher"][n]) * (parameters[n] - w) ** 2).sum()
        for one in known.values()
        for n, w in ((n, torch.from_numpy(w)) for n, w in one["w"].items())
    )


def test_the_sums_are_the_penalties_of_all_others():
    server, known = FedCurv(FedCurvParams(), ServerContext(0)), others()
    state = server.init(shared(model())["base"])
    mine = others(seed=2)[1]
    sent = {0: update_of(mine), **{c: update_of(one) for c, one in known.items()}}
    for update in sent.values():
        server.check_update(state, update)
    state = server.combine(state, NOW, sent)

    received = server.send(state, NOW, 0)
    _, update = learner().train(Turn({}, received, NOW, data()))

    network = model()
    network.load_state_dict(
        {n: torch.from_numpy(v) for n, v in state["base"].items()}, strict=False
    )
    parameters = dict(network.named_parameters())
    for _ in range(STEPS):
        found = gradients(
            network, data().train, extra=lambda network: quadratic(network, known)
        )
        for name, gradient in found.items():
            parameters[name].data -= RATE * gradient
    for name, value in update.payload["base"].items():
        np.testing.assert_allclose(
            value, parameters[name].detach(), rtol=1e-4, atol=1e-5
        )
    # The penalty has moved the model: without it it ends elsewhere.
    plain = {**received, FISHER: {}, WEIGHTED: {}}
    _, free = learner().train(Turn({}, plain, NOW, data()))
    moved = update.payload["base"]["body.0.bias"] - free.payload["base"]["body.0.bias"]
    assert np.abs(moved).max() > 0.05


def test_a_client_sends_the_curvature_of_its_data_where_it_ends():
    one = learner(fisher_examples=5)
    state, update = one.train(
        Turn({}, {**shared(model()), FISHER: {}, WEIGHTED: {}}, NOW, data())
    )

    network = model()
    network.load_state_dict(
        {
            n: torch.from_numpy(v)
            for n, v in {**update.payload["base"], **state["heads"]}.items()
        },
        strict=False,
    )
    squares = dict.fromkeys(update.payload["base"], 0.0)
    seen = data().train
    for i in range(5):
        single = Examples(seen.x[i : i + 1], seen.y[i : i + 1])
        found = gradients(network, single)
        squares = {n: s + found[n].double() ** 2 for n, s in squares.items()}
    assert update.payload[FISHER].keys() == squares.keys()
    for name, total in squares.items():
        fisher = update.payload[FISHER][name]
        np.testing.assert_allclose(fisher, total / 5, rtol=1e-4, atol=1e-9)
        weighted = fisher * update.payload["base"][name]
        np.testing.assert_array_equal(update.payload[WEIGHTED][name], weighted)
    assert max(float(values.max()) for values in update.payload[FISHER].values()) > 0
    assert state.keys() == {"heads", "optimizer"}


def test_the_loss_that_is_told_is_without_penalty_for_the_received_model():
    server, known = FedCurv(FedCurvParams(), ServerContext(0)), others()
    state = server.init(shared(model())["base"])
    state = server.combine(state, NOW, {c: update_of(one) for c, one in known.items()})
    received = {**server.send(state, NOW, 0), **shared(model())}
    _, first = learner(epochs=1).train(Turn({}, received, NOW, data()))
    one = learner(epochs=1, learning_rate=1e-12)
    watched = Watched(one)
    one.train(Turn({}, received, NOW, data()))
    with torch.no_grad():
        one.model.body[0].weight.add_(0.3)

    found = float(watched.penalty().detach())

    network, seen = model(), data().train
    loss = nn.functional.cross_entropy(network(seen.x, 0), seen.y)
    assert first.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    before, after = quadratic(network, known), quadratic(one.model, known)
    assert found == pytest.approx(float((after - before).detach()), rel=1e-4)


# ---- the server


def server_and_state():
    server = FedCurv(FedCurvParams(), ServerContext(0))
    return server, server.init({"w": np.zeros(2, np.float32), "n": np.asarray(3)})


def sent(w, fisher, weighted, examples=1):
    base = {"w": np.float32(w), "n": np.asarray(3)}
    sums = {FISHER: {"w": np.float32(fisher)}, WEIGHTED: {"w": np.float32(weighted)}}
    return Update({"base": base, **sums}, examples)


def received_by(server, state, client):
    assert server.send_to_predict(state, NOW, client) == {"base": state["base"]}
    request = server.send(state, NOW, client)
    assert request.keys() == {"base", FISHER, WEIGHTED}
    assert request["base"] is state["base"]
    return [
        {name: values.tolist() for name, values in request[group].items()}
        for group in (FISHER, WEIGHTED)
    ]


def test_the_server_by_hand():
    server, start = server_and_state()
    assert received_by(server, start, 0) == [{}, {}]
    state = server.combine(
        start,
        NOW,
        {
            0: sent([1, 1], [1, 2], [3, 4]),
            1: sent([4, 7], [10, 20], [30, 40], 2),
            10: sent([0, 0], [100, 200], [300, 400], 0),
        },
    )
    np.testing.assert_allclose(state["base"]["w"], [3, 5], rtol=1e-6)
    # Who has no examples has no curvature.
    assert received_by(server, state, 10) == [{"w": [11, 22]}, {"w": [33, 44]}]
    assert received_by(server, state, 0) == [{"w": [10, 20]}, {"w": [30, 40]}]
    assert received_by(server, state, 1) == [{"w": [1, 2]}, {"w": [3, 4]}]
    # Client 1 is absent and stays in the sums; what client 0 sent before does not.
    state = server.combine(state, NOW, {0: sent([0, 0], [5, 6], [7, 8])})
    assert received_by(server, state, 2) == [{"w": [15, 26]}, {"w": [37, 48]}]
    assert received_by(server, state, 1) == [{"w": [5, 6]}, {"w": [7, 8]}]
    assert state[FISHER]["w"].dtype == np.float32
    assert start.keys() == {"base", FISHER, WEIGHTED}


def test_a_round_without_examples_changes_nothing():
    server, start = server_and_state()
    update = sent([9, 9], [9, 9], [9, 9], 0)
    assert server.combine(start, NOW, {0: update}) is start


def test_many_small_curvatures_are_not_lost_beside_a_large_one():
    server, state = server_and_state()
    updates = {c: sent([0, 0], [2.0**-24, 0], [0, 0]) for c in range(1, 9)}
    updates[0] = sent([0, 0], [1, 0], [0, 0])
    state = server.combine(state, NOW, updates)
    # In single precision 1 + 2^-24 is 1, however often.
    assert received_by(server, state, 0)[0] == {"w": [2.0**-21, 0]}


GOOD = sent([0, 0], [1, 0], [0, 0]).payload


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({**GOOD, FISHER: {"w": np.float32([1, -1e-9])}}, "fisher/w: .* at least 0"),
        ({**GOOD, WEIGHTED: {}}, r"\['w'\]: expected in both"),
        ({**GOOD, FISHER: {}}, r"\['w'\]: expected in both"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(payload, complaint):
    server, state = server_and_state()
    with pytest.raises(WireError, match=complaint):
        server.check_update(state, Update(payload, 1))
    server.check_update(state, Update(GOOD, 1))
    server.check_update(state, Update({**GOOD, FISHER: {}, WEIGHTED: {}}, 1))


def test_a_client_without_examples_sends_zeros():
    none = data()
    none = replace(none, train=Examples(none.train.x[:0], none.train.y[:0]))
    received = {**shared(model()), FISHER: {}, WEIGHTED: {}}
    _, update = learner().train(Turn({}, received, NOW, none))
    assert not any(values.any() for values in update.payload[FISHER].values())


# ---- runs


@pytest.mark.soak
@pytest.mark.run
def test_a_run_carries_curvatures_and_they_change_what_is_learned(tmp_path):
    def run(**more):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run_in_process(tiny(folder, rounds=2, **more))
        return summary_of(folder)

    few = {"name": "fedcurv", "fisher_examples": 10}
    plain = run(strategy="fedavg")
    off = run(strategy={**few, "strength": 0.0})
    held = run(strategy={**few, "strength": 1000.0})
    alone = run(strategy=few, local_only=True)

    assert off["client_accuracy"] == plain["client_accuracy"]
    assert held["client_accuracy"] != plain["client_accuracy"]
    # Of nobody else there is a curvature.
    assert alone["client_accuracy"] == run(strategy="local")["client_accuracy"]
    # A model and two numbers for each of its parameters, zero where no neuron answers.
    ratio = held["nominal_bytes_up"] / plain["nominal_bytes_up"]
    assert 2 < ratio <= 3
    kinds = held["bytes_by_kind"]
    assert kinds["up"].keys() == kinds["down"].keys() == {"base", "curvature", "meta"}
    # The server keeps what others must not lose, and sends the sums in each round.
    assert held["model_bytes"] == pytest.approx(plain["model_bytes"], rel=0.01)
