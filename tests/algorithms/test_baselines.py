"""FedAvg, FedProx, EWC, local and single-task learning against plain oracles."""

import numpy as np
import pytest
import torch
from torch import nn

from clients.ewc import Ewc, diagonal_fisher, ewc_penalty
from clients.fedprox import FedProx, proximal_term
from clients.local import Local
from clients.replay import Replay
from clients.stl import SingleTask
from fcl_flower.algorithms.base import ClientContext, Params, ServerContext, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.ewc import EwcParams
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProxParams
from strategies.replay import ReplayParams
from strategies.stl import StlParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)


def model(tasks=2):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    return MultiHeadModel(
        body, features=4, input_shape=(3,), tasks=tasks, classes=2, single_head=False
    )


def place(**training):
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01} | training
    return ClientContext(client=0, seed=0, training=Training(**chosen))


def data(seed=0, count=12):
    draw = torch.Generator().manual_seed(seed)
    splits = [torch.randn(count, 3, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0] > 0).long()) for x in splits)
    return TaskData(*parts, classes=2)


def shared(network):
    return {"base": snapshot(network, network.shared_names())}


def test_aggregate_weights_clients_by_examples():
    strategy = FedAvg(Params(), ServerContext(0))
    state = strategy.init({"w": np.zeros(2, np.float32)})
    updates = {
        0: Update({"base": {"w": np.float32([1, 1])}}, num_examples=1),
        1: Update({"base": {"w": np.float32([4, 7])}}, num_examples=2),
    }

    new = strategy.combine(state, FIRST, updates)

    # (1 * 1 + 2 * 4) / 3 and (1 * 1 + 2 * 7) / 3
    np.testing.assert_allclose(new["base"]["w"], [3, 5], rtol=1e-6)
    assert new["base"]["w"].dtype == np.float32
    np.testing.assert_array_equal(state["base"]["w"], [0, 0])


def test_aggregate_keeps_the_model_when_no_client_saw_an_example():
    strategy = FedAvg(Params(), ServerContext(0))
    state = strategy.init({"w": np.ones(2, np.float32)})
    updates = {0: Update({"base": {"w": np.float32([5, 5])}}, num_examples=0)}
    assert strategy.combine(state, FIRST, updates)["base"]["w"].tolist() == [
        1,
        1,
    ]


def test_local_training_starts_at_the_received_model_and_equals_plain_adam():
    network, oracle = model(), model()
    learner = LocalTraining(Params(), network, place(epochs=3))
    received = shared(model())
    received["base"] = {k: v + 1 for k, v in received["base"].items()}

    state, update = learner.train(Turn({}, received, FIRST, data()))

    load(oracle, received["base"])
    optimizer = torch.optim.Adam(
        [*oracle.body.parameters(), *oracle.heads[0].parameters()], lr=0.01
    )
    examples = data().train
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(oracle(examples.x, 0), examples.y).backward()
        optimizer.step()
    for name, value in update.payload["base"].items():
        np.testing.assert_allclose(value, oracle.state_dict()[name], atol=1e-6)
    np.testing.assert_allclose(
        state["heads"]["heads.0.weight"], oracle.heads[0].weight.detach(), atol=1e-6
    )
    assert update.num_examples == 12


PLAIN = {
    "fedavg": lambda network, where: LocalTraining(Params(), network, where),
    "fedprox": lambda network, where: FedProx(FedProxParams(mu=0.0), network, where),
    "ewc": lambda network, where: Ewc(EwcParams(), network, where),
    "replay": lambda network, where: Replay(ReplayParams(), network, where),
    "local": lambda network, where: Local(Params(), network, where),
    "stl": lambda network, where: SingleTask(StlParams(), network, where),
}


@pytest.mark.parametrize("name", PLAIN)
def test_two_rounds_of_a_task_are_one_run_of_adam_with_its_moments(name):
    learner = PLAIN[name](model(), place(epochs=3, lr_patience=0))
    oracle = model()

    state, update = learner.train(Turn(learner.init(), shared(model()), FIRST, data()))
    received = update.payload or {}
    state, update = learner.train(Turn(state, received, LAST, data()))

    optimizer = torch.optim.Adam(
        [*oracle.body.parameters(), *oracle.heads[0].parameters()], lr=0.01
    )
    examples = data().train
    for _ in range(3 + 3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(oracle(examples.x, 0), examples.y).backward()
        optimizer.step()
    kept = {"local": "base", "stl": "base/0"}
    learned = state[kept[name]] if name in kept else update.payload["base"]
    for key, value in learned.items():
        np.testing.assert_allclose(value, oracle.state_dict()[key], atol=1e-6)
    assert state["optimizer"] == {}, "the next task begins with none"


def test_the_proximal_term_and_its_gradient_by_hand():
    network = model()
    term = proximal_term(network, shared(network)["base"], mu=0.5)
    with torch.no_grad():
        network.body[0].bias.add_(2.0)

    found = term()
    found.backward()

    # mu / 2 * 4 biases * 2^2 = 4, gradient mu * 2 = 1 each.
    assert float(found.detach()) == pytest.approx(4.0, abs=1e-5)
    assert network.body[0].bias.grad.tolist() == pytest.approx([1.0] * 4)
    assert network.heads[0].bias.grad is None, "a head has no global value"


def test_fisher_is_the_mean_squared_gradient_of_single_examples():
    learner = Ewc(EwcParams(fisher_examples=5), model(), place())
    examples = data().train

    found = diagonal_fisher(learner.model, examples, 0, 5)

    # The gradient of log softmax at the bias of a linear layer before a tanh head.
    weight = learner.model.body[0].weight.detach().double().numpy()
    bias = learner.model.body[0].bias.detach().double().numpy()
    head = learner.model.heads[0].weight.detach().double().numpy()
    offset = learner.model.heads[0].bias.detach().double().numpy()
    total_bias, total_weight = np.zeros(4), np.zeros((4, 3))
    for x, y in zip(examples.x[:5].double().numpy(), examples.y[:5], strict=True):
        hidden = np.tanh(weight @ x + bias)
        logits = head @ hidden + offset
        p = np.exp(logits) / np.exp(logits).sum()
        p[int(y)] -= 1
        delta = (head.T @ p) * (1 - hidden**2)
        total_bias += delta**2
        total_weight += np.outer(delta, x) ** 2
    np.testing.assert_allclose(found["body.0.bias"], total_bias / 5, rtol=1e-4)
    np.testing.assert_allclose(found["body.0.weight"], total_weight / 5, rtol=1e-4)


def test_the_penalty_of_ewc_by_hand():
    network = model()
    anchor = shared(network)["base"]
    ones = {k: np.ones_like(v) for k, v in anchor.items()}
    penalty = ewc_penalty(network, {"fisher": ones, "anchor": anchor}, strength=3.0)
    assert float(penalty().detach()) == pytest.approx(0.0, abs=1e-9)
    with torch.no_grad():
        network.body[0].bias.add_(2.0)
    # strength / 2 * F * d^2 = 1.5 * 1 * 4 for each of four biases
    assert float(penalty().detach()) == pytest.approx(24.0, rel=1e-5)


def test_ewc_adds_up_fisher_information_when_a_task_ends():
    learner = Ewc(EwcParams(decay=0.5), model(), place())
    old = {
        "fisher": {k: np.full_like(v, 2.0) for k, v in shared(model())["base"].items()}
    }
    old["anchor"] = shared(model())["base"]
    during, _ = learner.train(Turn(old, shared(model()), FIRST, data()))
    assert during["fisher"] is old["fisher"]
    after, update = learner.train(Turn(during, shared(model()), LAST, data()))
    alone = diagonal_fisher(learner.model, data().train, 0, 200)
    for name, values in after["fisher"].items():
        np.testing.assert_allclose(values, 0.5 * 2.0 + alone[name], rtol=1e-5)
        np.testing.assert_array_equal(
            after["anchor"][name], update.payload["base"][name]
        )


def test_local_goes_on_from_its_own_model_and_sends_nothing():
    learner = Local(Params(), model(), place())
    state, update = learner.train(Turn(learner.init(), {}, FIRST, data()))
    assert update.payload == {}
    again, _ = learner.train(Turn(state, {}, LAST, data()))
    assert not np.array_equal(
        state["base"]["body.0.weight"], again["base"]["body.0.weight"]
    )
    load(learner.model, shared(model())["base"])
    logits = learner.predict(again, {}, 0, data().test.x)
    load(learner.model, again["base"])
    load(learner.model, again["heads"])
    torch.testing.assert_close(logits, learner.model(data().test.x, 0))


def test_single_task_learning_starts_afresh_and_keeps_each_model():
    learner = SingleTask(StlParams(), model(), place(epochs=4))
    state, _ = learner.train(Turn(learner.init(), {}, FIRST, data()))
    before = learner.predict(state, {}, 0, data().test.x)
    second = TaskStage(round=3, task=1, starts_task=True, ends_task=True)
    state, _ = learner.train(Turn(state, {}, second, data(seed=5)))
    assert torch.equal(learner.predict(state, {}, 0, data().test.x), before)
    fresh = SingleTask(StlParams(), model(), place(epochs=4))
    alone, _ = fresh.train(Turn(fresh.init(), {}, second, data(seed=5)))
    for name in alone["base/1"]:
        np.testing.assert_array_equal(alone["base/1"][name], state["base/1"][name])
