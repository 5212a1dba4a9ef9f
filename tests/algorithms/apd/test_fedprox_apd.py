"""FedProx-APD: its steps by plain autograd, what travels, and whole runs."""

import numpy as np
import pytest
import torch
from apd_cases import SGD, begun, check, descend, place
from fakes import run_in_process, summary_of, tiny
from fedweit_cases import W, data, linear_model, stage

from clients.fedprox_apd import FedProxApd
from fcl_flower.algorithms.base import ServerContext, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Update
from strategies.fedprox_apd import FedProxApdParams, SharedWeights

PARAMS = FedProxApdParams(
    lambda1=0.02, lambda2=0.3, mu=0.7, threshold=0, consolidate_every=0
)
SHAPE = {"rounds": 2, "epochs": 3, "learning_rate": 3e-3}


def received(seed):
    draw = np.random.default_rng(seed)
    return {"base": {W: draw.normal(size=(6, 4)).astype(np.float32)}}


def test_training_is_descent_from_the_received_weights_with_a_pull_back_to_them():
    context = place(epochs=4, rate=0.1, optimizer=SGD)
    learner = FedProxApd(PARAMS, linear_model(), context)
    given = {"steps": 4, "rate": 0.1, "params": PARAMS, "mu": 0.7}
    first, second = received(1), received(2)

    state, sent = learner.train(Turn(learner.init(), first, stage(0), data(1)))
    sigma = torch.from_numpy(first["base"][W])
    one = begun(0, sigma, PARAMS)
    one = descend(one, data(1).train, old=[], first=True, centre=sigma, **given)
    check(state, 0, one)
    assert {g: set(a) for g, a in sent.payload.items()} == {"base": {W}}
    np.testing.assert_array_equal(sent.payload["base"][W], state["base"][W])
    assert sent.num_examples == 40

    after, _ = learner.train(Turn(state, second, stage(1), data(2)))
    sigma = torch.from_numpy(second["base"][W])
    old = [(one["tau"], torch.sigmoid(one["v"]), one["sigma"])]
    two = begun(1, sigma, PARAMS)
    two = descend(two, data(2).train, old=old, first=False, centre=sigma, **given)
    check(after, 1, two)


def test_the_shared_weights_are_averaged_by_examples_and_nothing_else_is():
    strategy = SharedWeights(FedProxApdParams(), ServerContext(0))
    weight = np.ones((6, 4), np.float32)
    state = strategy.init({W: weight, "body.0.bias": weight[0]})
    assert state["base"].keys() == {W}
    updates = {0: Update({"base": {W: 5 * weight}}, 40), 1: Update(state, 120)}
    new = strategy.combine(state, stage(0), updates)
    np.testing.assert_allclose(new["base"][W], 2 * weight, rtol=1e-6)
    with pytest.raises(ConfigError, match="APD decomposes nothing else"):
        strategy.init({"body.0.bias": weight[0]})


def test_old_tasks_predict_as_before_though_others_moved_the_shared_weights():
    params = FedProxApdParams(lambda1=0, threshold=0, consolidate_every=0)
    learner = FedProxApd(params, linear_model(), place())
    state, _ = learner.train(Turn(learner.init(), received(1), stage(0), data(1)))
    x = data(1).test.x
    before = learner.predict(state, {"base": state["base"]}, 0, x)
    mean = learner.predict(state, received(2), 0, x)
    torch.testing.assert_close(mean, before, atol=1e-4, rtol=0)
    state, _ = learner.train(Turn(state, received(2), stage(1), data(2)))
    after = learner.predict(state, received(3), 0, x)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)


def test_a_task_in_progress_is_predicted_with_the_received_weights():
    learner = FedProxApd(PARAMS, linear_model(), place())
    now = stage(0, ends_task=False)
    state, _ = learner.train(Turn(learner.init(), received(1), now, data(1)))
    x = data(1).test.x
    found = learner.predict(state, received(2), 0, x)
    sigma = torch.from_numpy(received(2)["base"][W])
    gates = torch.sigmoid(torch.from_numpy(state["masks/0"][W]))[:, None]
    theta = sigma * gates + torch.from_numpy(state["adapters/0"][W])
    own = {name: torch.from_numpy(v) for name, v in state["heads/0"].items()}
    hidden = torch.tanh(x @ theta.T + own["body.0.bias"])
    expected = hidden @ own["heads.0.weight"].T + own["heads.0.bias"]
    torch.testing.assert_close(found, expected)


# ---- whole runs


@pytest.mark.run
def test_one_client_alone_without_the_term_is_apd(tmp_path):
    given = {"clients": 1, "strategy.consolidate_every": 2, "strategy.groups": 1}
    run_in_process(tiny(tmp_path / "apd", strategy="apd", **SHAPE, **given))
    given["strategy.mu"] = 0.0
    run_in_process(tiny(tmp_path / "prox", strategy="fedprox-apd", **SHAPE, **given))
    apd, prox = summary_of(tmp_path / "apd"), summary_of(tmp_path / "prox")
    assert prox["client_accuracy"] == apd["client_accuracy"]
    assert prox["model_bytes"] > apd["model_bytes"], "what it is sent counts too"
