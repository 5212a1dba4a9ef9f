"""SCAFFOLD: both sides against algorithm 1, step by step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from lone_learner import data, gradients, model, place, shared, stage
from torch import nn

from clients import scaffold as client_side
from clients.ewc import diagonal_fisher
from clients.scaffold import Scaffold as Learner
from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import Params, ServerContext, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Update
from fcl_flower.data.examples import Examples
from fcl_flower.rounds.messages import decode_payload
from fcl_flower.training.tensors import load
from strategies.scaffold import Scaffold, ScaffoldParams

RATE, STEPS = 0.1, 3
NOW = stage(1)


def learner(client=0, variate="steps", **training):
    usual = {"epochs": STEPS, "learning_rate": RATE} | training
    return Learner(
        ScaffoldParams(variate=variate), model(), place(client=client, **usual)
    )


def body_of(network):
    return {n: t for n, t in network.state_dict().items() if n.startswith("body")}


def near(found, expected, tolerance=2e-6):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=tolerance)


def test_two_clients_over_two_tasks_are_algorithm_1():
    server = Scaffold(ScaffoldParams(), ServerContext(0))
    state = server.init(shared(model())["base"])
    learners, kept = {c: learner(c) for c in (0, 1)}, {0: {}, 1: {}}
    # The same by torch alone: x, c, c_i, and each client's heads.
    networks = {client: model() for client in learners}
    x = {n: t.clone() for n, t in body_of(networks[0]).items()}
    c = {n: torch.zeros_like(t) for n, t in x.items()}
    own = {k: {n: torch.zeros_like(t) for n, t in x.items()} for k in networks}
    count = {0: 12, 1: 6}

    for number in range(1, 5):
        task = (number - 1) // 2
        now = stage(number, task, starts=number % 2 == 1, ends=number % 2 == 0)
        updates, y, new = {}, {}, {}
        for client, one in learners.items():
            seen = data(10 * task + client, count[client])
            received = server.send(state, now, client)
            kept[client], update = one.train(Turn(kept[client], received, now, seen))
            server.check_update(state, update)
            updates[client] = update

            network = networks[client]
            network.load_state_dict(x, strict=False)
            parameters = dict(network.named_parameters())
            for _ in range(STEPS):
                for name, g in gradients(network, seen.train, task).items():
                    correction = c[name] - own[client][name] if name in c else 0.0
                    parameters[name].data -= RATE * (g + correction)
            y[client] = {n: t.clone() for n, t in body_of(network).items()}
            new[client] = {
                n: own[client][n] - c[n] + (x[n] - y[client][n]) / (STEPS * RATE)
                for n in x
            }
        state = server.combine(state, now, updates)
        x = {n: (12 * y[0][n] + 6 * y[1][n]) / 18 for n in x}
        c = {n: c[n] + sum(new[k][n] - own[k][n] for k in own) / 2 for n in x}
        own = new

        near(state["base"], x)
        near(state["control"], c, 1e-5)
        for client in learners:
            near(kept[client]["control"], own[client], 1e-5)
    assert max(float(np.abs(v).max()) for v in state["control"].values()) > 0.01
    assert state["control"]["body.0.bias"].dtype == np.float32


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"weight_decay": 0.2}),
        (torch.optim.Adam, {}),
    ],
)
def test_by_any_optimizer_a_variate_is_the_mean_gradient(kind, settings):
    rng = np.random.default_rng(0)
    received = shared(model())
    c, own = (
        {n: np.float32(rng.normal(size=v.shape)) for n, v in received["base"].items()}
        for _ in range(2)
    )
    received["control"] = c
    one = learner(optimizer=kind.__name__.lower(), **settings)

    kept, update = one.train(Turn({"control": own}, received, NOW, data()))

    network, found = model(), []
    trained = [*network.body.parameters(), *network.heads[0].parameters()]
    by_torch = kind(trained, lr=RATE, **settings)
    parameters = dict(network.named_parameters())
    for _ in range(STEPS):
        found.append(gradients(network, data().train))
        for key, gradient in found[-1].items():
            correction = torch.from_numpy(c[key] - own[key]) if key in c else 0.0
            parameters[key].grad = gradient + correction
        by_torch.step()
    near(update.payload["base"], body_of(network))
    mean = {key: sum(one[key] for one in found) / STEPS for key in c}
    near(kept["control"], mean, 1e-5)
    change = {key: mean[key] - torch.from_numpy(own[key]) for key in c}
    near(update.payload["control/change"], change, 1e-5)


def test_option_1_takes_the_gradient_at_the_received_model(monkeypatch):
    monkeypatch.setattr(client_side, "CHUNK", 5)  # of 12 examples: 5, 5 and 2
    moved = {n: v + 0.3 for n, v in shared(model())["base"].items()}
    one = learner(variate="start")
    network, heads = model(), {"heads.0.bias": np.float32([0.4, -0.4])}
    load(network, {**moved, **heads})
    expected = gradients(network, data().train)

    received = {"base": moved, "control": {}}
    kept, update = one.train(Turn({"heads": heads}, received, NOW, data()))

    near(kept["control"], {n: expected[n] for n in moved}, 1e-6)
    near(update.payload["control/change"], {n: expected[n] for n in moved}, 1e-6)


def test_the_loss_that_is_told_has_no_part_of_the_correction_at_the_start():
    received = shared(model())
    received["control"] = {n: np.full_like(v, 9) for n, v in received["base"].items()}
    own = {n: np.zeros_like(v) for n, v in received["base"].items()}
    _, update = learner(epochs=1).train(Turn({"control": own}, received, NOW, data()))
    network, seen = model(), data().train
    loss = nn.functional.cross_entropy(network(seen.x, 0), seen.y)
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_who_begins_late_corrects_nothing_in_its_first_round():
    received = shared(model())
    plain = LocalTraining(Params(), model(), place(epochs=STEPS))
    _, expected = plain.train(Turn({}, received, NOW, data()))
    received["control"] = {n: np.ones_like(v) for n, v in received["base"].items()}

    _, update = learner().train(Turn({}, received, NOW, data()))

    near(update.payload["base"], expected.payload["base"], 0)


@pytest.mark.parametrize("variate", ["steps", "start"])
def test_without_examples_nothing_is_learned_of_the_drift(variate):
    received = shared(model())
    received["control"] = {n: np.ones_like(v) for n, v in received["base"].items()}
    own = {n: np.full_like(v, 3) for n, v in received["base"].items()}
    none = data()
    none = replace(none, train=Examples(none.train.x[:0], none.train.y[:0]))

    kept, update = learner(variate=variate).train(
        Turn({"control": own}, received, NOW, none)
    )

    near(kept["control"], own, 0)
    assert not any(v.any() for v in update.payload["control/change"].values())


def test_one_client_alone_has_no_drift():
    server = Scaffold(ScaffoldParams(), ServerContext(0))
    state, alone = server.init(shared(model())["base"]), {}
    received, plain = shared(model()), {}
    for number in (1, 2, 3):
        now = stage(number, starts=number == 1, ends=False)
        sent = server.send(state, now, 0)
        alone, update = learner().train(Turn(alone, sent, now, data()))
        state = server.combine(state, now, {0: update})
        plain, update = LocalTraining(Params(), model(), place(epochs=STEPS)).train(
            Turn(plain, received, now, data())
        )
        received = update.payload
    near(state["base"], received["base"])


# ---- the server


def server_and_state(**control):
    server = Scaffold(ScaffoldParams(), ServerContext(0))
    state = server.init({"w": np.zeros(2, np.float32), "n": np.asarray(3)})
    return server, state


def sent(w, change, examples=1):
    base = {"w": np.float32(w), "n": np.asarray(3)}
    payload = {"base": base, "control/change": {"w": np.float32(change)}}
    return Update(payload, examples)


def test_the_server_by_hand():
    server, start = server_and_state()
    state = server.combine(
        start, NOW, {0: sent([1, 1], [2, 0]), 1: sent([4, 7], [4, 6], 2)}
    )
    # (1 + 2 * 4) / 3, (1 + 2 * 7) / 3; (2 + 4) / 2, (0 + 6) / 2
    np.testing.assert_allclose(state["base"]["w"], [3, 5], rtol=1e-6)
    np.testing.assert_allclose(state["control"]["w"], [3, 3], rtol=1e-6)
    # Client 2 is the third that ever trained: c + change / 3.
    state = server.combine(state, NOW, {2: sent([0, 0], [6, -3])})
    np.testing.assert_allclose(state["control"]["w"], [5, 2], rtol=1e-6)
    # Client 1 is known: of three clients one changes.
    state = server.combine(state, NOW, {1: sent([0, 0], [-3, 3])})
    np.testing.assert_allclose(state["control"]["w"], [4, 3], rtol=1e-6)
    assert state["meta/seen"]["client"].tolist() == [0, 1, 2]
    assert start["control"] == {}
    assert server.send(state, NOW, 7) == {
        "base": state["base"],
        "control": state["control"],
    }
    assert server.send_to_predict(state, NOW, 7) == {"base": state["base"]}


@pytest.mark.run
def test_who_is_tested_is_sent_no_variates(tmp_path):
    asked = {"train": [], "evaluate": []}

    def note(client, request, reply):
        if request.kind in asked:
            groups = decode_payload(request.content)
            asked[request.kind].append(set(groups))
        return reply

    run_in_process(tiny(tmp_path, strategy="scaffold", tasks=1, rounds=2), tamper=note)

    assert asked["evaluate"] == [{"base"}] * 2
    assert asked["train"][-1] == {"base", "control"}


def test_who_has_no_examples_does_not_count():
    server, start = server_and_state()
    nobody = {0: sent([9, 9], [9, 9], 0)}
    assert server.combine(start, NOW, nobody) is start
    state = server.combine(start, NOW, {**nobody, 1: sent([1, 2], [3, 4])})
    np.testing.assert_array_equal(state["base"]["w"], [1, 2])
    np.testing.assert_array_equal(state["control"]["w"], [3, 4])
    assert state["meta/seen"]["client"].tolist() == [1]


def test_a_rule_that_is_robust_holds_for_the_variates_too():
    server, start = server_and_state()
    server.aggregation = Aggregation(rule="median")
    changes = ([1, 1], [2, 2], [1000, -1000])
    updates = {c: sent([c, c], change) for c, change in enumerate(changes)}
    state = server.combine(start, NOW, updates)
    np.testing.assert_array_equal(state["base"]["w"], [1, 1])
    np.testing.assert_array_equal(state["control"]["w"], [2, 1])


GOOD = sent([0, 0], [0, 0]).payload


def test_who_sends_no_variate_moves_none():
    server, start = server_and_state()
    silent = Update({"base": GOOD["base"], "control/change": {}}, 1)
    server.check_update(start, silent)
    state = server.combine(start, NOW, {0: sent([0, 0], [2, 4]), 1: silent})
    np.testing.assert_array_equal(state["control"]["w"], [2, 4])
    state = server.combine(state, NOW, {1: silent})
    np.testing.assert_array_equal(state["control"]["w"], [2, 4])
    assert server.combine(start, NOW, {1: silent})["control"] == {}


# ---- runs


def test_an_option_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"strategy\.variate: got 'end', expected"):
        algorithm("scaffold").params({"variate": "end"})


@pytest.mark.run
def test_a_run_carries_variates_and_they_change_what_is_learned(tmp_path):
    def run(name, **more):
        run_in_process(tiny(tmp_path / name, rounds=2, **more))
        return summary_of(tmp_path / name)

    found = run("a", strategy="scaffold")
    start = run("b", strategy={"name": "scaffold", "variate": "start"})
    plain = run("c", strategy="fedavg")

    assert found["client_accuracy"] != plain["client_accuracy"]
    assert start["client_accuracy"] != found["client_accuracy"]
    # A model and a variate of each of its parameters, zero where no neuron answers.
    ratio = found["nominal_bytes_up"] / plain["nominal_bytes_up"]
    assert 1.5 < ratio <= 2
    kinds = found["bytes_by_kind"]
    assert kinds["up"].keys() == kinds["down"].keys() == {"base", "control", "meta"}
    # A client keeps its own variate over tasks, and the common one comes in each round.
    ratio = found["model_bytes"] / plain["model_bytes"]
    assert 1.5 < ratio <= 2


def test_a_layer_that_forward_never_uses_has_no_gradient():
    taking = learner(variate="start")
    taking.model.unused = nn.Linear(2, 2)
    name = "unused.weight"
    fisher = diagonal_fisher(taking.model, data().train, 0, 3)
    assert not fisher[name].any()
    assert fisher["body.0.weight"].any()

    received = {**shared(taking.model), "control": {}}
    _, update = taking.train(Turn({}, received, NOW, data()))

    assert not update.payload["control/change"][name].any()


@pytest.mark.parametrize("balance", ["weights", "batches"])
def test_the_gradients_at_the_start_count_classes_alike(balance):
    draw = torch.Generator().manual_seed(4)
    few = Examples(torch.randn(8, 3, generator=draw), torch.tensor([0] * 2 + [1] * 6))
    times = torch.tensor([3] * 2 + [1] * 6)
    alike = Examples(*(part.repeat_interleave(times, 0) for part in few))
    received = {**shared(model()), "control": {}}
    found = []
    for kind, train in ((balance, few), ("none", alike)):
        given = replace(data(), train=train)
        state, _ = learner(variate="start", balance=kind).train(
            Turn({}, received, NOW, given)
        )
        found.append(state["control"])
    near(*found)
