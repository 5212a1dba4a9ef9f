"""FedProx-APD: its steps by plain autograd, what travels, and whole runs."""

import numpy as np
import pytest
import torch
from apd_cases import SGD, begun, check, descend, place
from fakes import rounds_of, run_in_process, summary_of, tiny
from fedweit_cases import W, data, linear_model, stage
from resuming import check_resumed, small

from clients.fedprox_apd import FedProxApd
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Update
from fcl_flower.training.tensors import snapshot
from strategies.fedprox_apd import FedProxApdParams, SharedWeights

PARAMS = FedProxApdParams(
    lambda1=0.02, lambda2=0.3, mu=0.7, threshold=0, consolidate_every=0
)


def server(seed=0):
    network = linear_model()
    strategy = SharedWeights(FedProxApdParams(), ServerContext(seed))
    return strategy, strategy.init(snapshot(network, network.shared_names()))


def received(seed):
    draw = np.random.default_rng(seed)
    return {"base": {W: draw.normal(size=(6, 4)).astype(np.float32)}}


def test_training_is_descent_from_the_received_weights_with_a_pull_back_to_them():
    context = place(epochs=4, rate=0.1, optimizer=SGD)
    learner = FedProxApd(PARAMS, linear_model(), context)
    given = {"steps": 4, "rate": 0.1, "params": PARAMS, "mu": 0.7}
    first, second = received(1), received(2)

    state, sent = learner.train(learner.init(), first, stage(0), data(1))
    sigma = torch.from_numpy(first["base"][W])
    one = begun(0, sigma, PARAMS)
    one = descend(one, data(1).train, old=[], first=True, centre=sigma, **given)
    check(state, 0, one)
    np.testing.assert_array_equal(sent.payload["base"][W], state["base"][W])
    assert sent.num_examples == 40

    after, _ = learner.train(state, second, stage(1), data(2))
    sigma = torch.from_numpy(second["base"][W])
    old = [(one["tau"], torch.sigmoid(one["v"]), one["sigma"])]
    two = begun(1, sigma, PARAMS)
    two = descend(two, data(2).train, old=old, first=False, centre=sigma, **given)
    check(after, 1, two)


def test_an_update_is_the_shared_weights_alone():
    strategy, state = server()
    learner = FedProxApd(FedProxApdParams(), linear_model(), place())
    sent = strategy.configure_train(state, stage(0), 0)
    _, update = learner.train(learner.init(), sent, stage(0), data(1))
    assert {g: set(a) for g, a in update.payload.items()} == {"base": {W}}
    strategy.check_update(state, update)
    new = strategy.aggregate_train(
        state, stage(0), {0: update, 1: Update(state, num_examples=120)}
    )
    expected = (40 * update.payload["base"][W] + 120 * state["base"][W]) / 160
    np.testing.assert_allclose(new["base"][W], expected, rtol=1e-5)


def test_old_tasks_predict_as_before_though_others_moved_the_shared_weights():
    params = FedProxApdParams(lambda1=0, threshold=0, consolidate_every=0)
    learner = FedProxApd(params, linear_model(), place())
    state, _ = learner.train(learner.init(), received(1), stage(0), data(1))
    x = data(1).test.x
    before = learner.predict(state, {"base": state["base"]}, 0, x)
    mean = learner.predict(state, received(2), 0, x)
    torch.testing.assert_close(mean, before, atol=1e-4, rtol=0)
    state, _ = learner.train(state, received(2), stage(1), data(2))
    after = learner.predict(state, received(3), 0, x)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)


def test_a_task_in_progress_is_predicted_with_the_received_weights():
    learner = FedProxApd(PARAMS, linear_model(), place())
    now = stage(0, ends_task=False)
    state, _ = learner.train(learner.init(), received(1), now, data(1))
    x = data(1).test.x
    found = learner.predict(state, received(2), 0, x)
    sigma = torch.from_numpy(received(2)["base"][W])
    gates = torch.sigmoid(torch.from_numpy(state["masks/0"][W]))[:, None]
    theta = sigma * gates + torch.from_numpy(state["adapters/0"][W])
    own = {name: torch.from_numpy(v) for name, v in state["heads/0"].items()}
    hidden = torch.tanh(x @ theta.T + own["body.0.bias"])
    expected = hidden @ own["heads.0.weight"].T + own["heads.0.bias"]
    torch.testing.assert_close(found, expected)


def test_the_heavier_the_term_the_nearer_the_weights_stay():
    moved = []
    for mu in (0.0, 1.0, 100.0):
        params = FedProxApdParams(mu=mu, weight_decay=0)
        learner = FedProxApd(params, linear_model(), place(optimizer=SGD))
        state, _ = learner.train(learner.init(), received(1), stage(0), data(1))
        moved.append(np.abs(state["base"][W] - received(1)["base"][W]).max())
    assert moved[0] > moved[1] > moved[2] > 0


def test_a_model_without_weights_is_refused():
    strategy = SharedWeights(FedProxApdParams(), ServerContext(0))
    with pytest.raises(ConfigError, match="APD decomposes nothing else"):
        strategy.init({"body.0.bias": np.zeros(3, np.float32)})


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"strategy\.mu: got -1\.0, expected"):
        algorithm("fedprox-apd").params({"mu": -1.0})


# ---- whole runs

SHAPE = {"rounds": 2, "epochs": 3, "learning_rate": 3e-3}


def test_one_client_alone_without_the_term_is_apd(tmp_path):
    given = {**SHAPE, "clients": 1, "strategy.consolidate_every": 2}
    given["strategy.groups"] = 1
    run_in_process(tiny(tmp_path / "apd", strategy="apd", **given))
    given["strategy.mu"] = 0.0
    run_in_process(tiny(tmp_path / "prox", strategy="fedprox-apd", **given))
    apd, prox = summary_of(tmp_path / "apd"), summary_of(tmp_path / "prox")
    assert prox["client_accuracy"] == apd["client_accuracy"]
    assert prox["model_bytes"] > apd["model_bytes"], "what it is sent counts too"
    assert prox["nominal_bytes_up"] > apd["nominal_bytes_up"] == 0


@pytest.mark.parametrize("name", ["apd", "fedprox-apd"])
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path, name):
    given = {**SHAPE, "strategy.consolidate_every": 2, "strategy.groups": 1}
    found = check_resumed(tmp_path, small(strategy=name, **given), 3)
    assert found["average_accuracy"] > 0.97


@pytest.mark.parametrize(
    "protection",
    [
        {"secure_aggregation": True, "clients": 3},
        {"unit": "client", "noise_multiplier": 0.1, "clip": 1.0},
        {"wire_dtype": "int8"},
    ],
)
def test_it_learns_with_what_protects_or_shrinks_an_update(tmp_path, protection):
    run_in_process(tiny(tmp_path, strategy="fedprox-apd", **SHAPE, **protection))
    assert summary_of(tmp_path)["average_accuracy"] > 0.95
    assert not any(row["failed"] for row in rounds_of(tmp_path))
