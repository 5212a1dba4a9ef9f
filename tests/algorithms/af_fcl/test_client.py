"""AF-FCL's client: its loss in NumPy, what trains what, and what it keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import exact
from flow_cases import (
    NumpyFlow,
    credibility_by_hand,
    flow_params,
    flow_tensors,
)
from torch import nn

from clients.af_fcl.client import AfFcl
from clients.fedavg import Sgd
from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import snapshot

PLAIN = {"replay": 0.0, "feature_distillation": 0.0, "output_distillation": 0.0}
FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=False)


def model(grown=None):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    made = MultiHeadModel(
        body, features=6, input_shape=(4,), tasks=1, classes=6, single_head=True
    )
    if grown:
        made.restrict_head(range(grown))
    return made


def learner(grown=None, client=0, training=None, **params):
    rule = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01, **(training or {})}
    context = ClientContext(client=client, seed=0, training=Training(**rule))
    return AfFcl(flow_params(**params), model(grown), context)


def received(seed=1):
    network, draw = model(), np.random.default_rng(seed)
    base = snapshot(network, network.shared_names())
    base = {n: draw.normal(size=v.shape).astype(np.float32) for n, v in base.items()}
    return {"base": base, "flow": flow_tensors(seed)}


def data(*labels, count=12):
    draw = torch.Generator().manual_seed(1)
    y = torch.tensor(labels).repeat(count)[:count]
    parts = (Examples(torch.randn(count, 4, generator=draw), y) for _ in range(3))
    return TaskData(*parts, classes=6)


# ---- the loss, by hand


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def body(tensors, x):
    return np.tanh(x @ tensors["body.0.weight"].T + tensors["body.0.bias"])


def head(tensors, hidden, classes=6):
    logits = hidden @ tensors["heads.0.weight"].T + tensors["heads.0.bias"]
    return logits[:, :classes]


def diverged(logits, targets, temperature):
    learned = log_softmax(logits / temperature)
    taught = log_softmax(targets / temperature)
    return (np.exp(taught) * (taught - learned)).sum(1).mean()


class Draws:
    """What a client draws in a round, in its order."""

    def __init__(self, number, client=0):
        seed = derive(0, "flow-samples", client, number)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, classes, count):
        at = torch.randint(len(classes), (count,), generator=self.generator)
        noise = torch.randn(count, 6, generator=self.generator)
        return np.array(classes)[at.numpy()], noise.numpy().astype(float)


def by_hand(sent, examples, draws, known, params, before=None, old=(), classes=6):
    """Return the loss at the tensors that were received, of all examples at once."""
    base = {n: np.asarray(v, np.float64) for n, v in sent["base"].items()}
    flow, y = NumpyFlow(sent["flow"]), examples.y.numpy()
    x = examples.x.numpy().astype(float)
    hidden = body(base, x)
    logits = head(base, hidden, classes)
    latents, density = flow.forward(hidden, y)
    loss = -log_softmax(logits)[range(len(y)), y].mean() - density.mean()
    if before:
        past = {n: np.asarray(v, np.float64) for n, v in before["base"].items()}
        past_hidden = body(past, x)
        columns = list(old)
        loss += params.feature_distillation * ((hidden - past_hidden) ** 2).mean()
        loss += params.output_distillation * diverged(
            logits[:, columns],
            head(past, past_hidden)[:, columns],
            params.temperature,
        )
        if params.flow_memory:
            labels, noise = draws(columns, len(y))
            again = NumpyFlow(before["flow"]).inverse(noise, labels)
            loss -= params.flow_memory * flow.forward(again, labels)[1].mean()
    if params.replay:
        labels, noise = draws(known, len(y))
        features = flow.inverse(noise, labels)
        typical = np.exp(density / 6).mean()
        drawn = {"latents": noise, "features": features}[params.compared]
        weights = credibility_by_hand(latents, y, drawn, labels, typical)
        share = (1 - params.exploration) * typical + params.exploration
        answers = head(base, features, classes)
        entropy = -log_softmax(answers)[range(len(y)), labels]
        replayed = share * (weights * entropy).mean()
        if before:
            targets = head(past, features)[:, columns]
            replayed += params.output_distillation * diverged(
                answers[:, columns], targets, params.temperature
            )
        loss += params.replay * replayed
    return loss


@pytest.mark.parametrize(
    "more",
    [{}, {"exploration": 0.7, "replay": 3.0}, {"compared": "features", "replay": 3.0}],
)
def test_the_loss_of_the_first_task(more):
    client, sent, task = learner(**more), received(), data(2, 3, 4)
    _, update = client.train({}, sent, FIRST, task)
    expected = by_hand(sent, task.train, Draws(1), (2, 3, 4), client.params)
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("grown", "more"),
    [
        (None, {"replay": 1.5, "flow_memory": 0.4, "temperature": 3.0}),
        (None, {"flow_memory": 0.0, "feature_distillation": 2.0, "exploration": 0.6}),
        (None, {"replay": 0.0, "output_distillation": 1.0}),
        (5, {"replay": 2.0, "output_distillation": 0.5}),
    ],
)
def test_the_loss_of_a_later_task(grown, more):
    before, sent, task = received(5), received(), data(2, 3)
    state, _ = learner(2 if grown else None).train({}, received(3), FIRST, data(0, 1))
    state, _ = learner(grown).train(state, before, SECOND, task)
    client = learner(grown, **more)
    _, update = client.train(state, sent, THIRD, task)
    known = tuple(range(grown or 4))
    expected = by_hand(
        sent,
        task.train,
        Draws(3),
        known,
        client.params,
        before,
        (0, 1),
        grown or 6,
    )
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_in_its_first_round_a_task_is_held_at_what_was_received():
    state, _ = learner().train({}, received(3), FIRST, data(0, 1))
    params = {"replay": 0.0, "flow_memory": 0.0}
    found = [
        learner(**params, feature_distillation=weight, output_distillation=weight)
        .train(state, received(), SECOND, data(2, 3))[1]
        .metrics["loss"]
        for weight in (0.0, 100.0)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


# ---- what trains what


def test_without_weights_the_network_learns_as_fedavg_does_and_the_flow_beside_it():
    client, sent = learner(**PLAIN, training={"epochs": 3}), received()
    plain = Sgd(Params(), model(), client.context)
    _, update = client.train({}, sent, FIRST, data(0, 1))
    _, expected = plain.train({}, {"base": sent["base"]}, FIRST, data(0, 1))
    assert exact({"": update.payload["base"]}) == exact({"": expected.payload["base"]})
    moved = update.payload["flow"]
    assert moved.keys() == sent["flow"].keys()
    assert not any(np.array_equal(moved[name], sent["flow"][name]) for name in moved)


def test_replay_trains_the_head_and_neither_body_nor_flow():
    found = [
        learner(replay=weight, training={"optimizer": OptimizerChoice("sgd")})
        .train({}, received(), FIRST, data(0, 1))[1]
        .payload
        for weight in (0.0, 50.0)
    ]
    assert exact(found[0])["flow"] == exact(found[1])["flow"]
    plain, much = (payload["base"] for payload in found)
    for name in plain:
        same = np.array_equal(plain[name], much[name])
        assert same == name.startswith("body."), name


def test_the_flow_has_a_rate_of_its_own():
    start, changes = received(), []
    for rate in (1.0, 3.0):
        client = learner(flow_rate=rate, training={"optimizer": OptimizerChoice("sgd")})
        _, update = client.train({}, start, FIRST, data(0, 1))
        changes.append(update.payload)
    assert exact(changes[0])["base"] == exact(changes[1])["base"]
    name = "couplings.0.exit.bias"
    slow, fast = (change["flow"][name] - start["flow"][name] for change in changes)
    np.testing.assert_allclose(fast, 3 * slow, rtol=1e-3, atol=1e-7)
    assert np.abs(slow).max() > 1e-4


def test_the_old_flow_teaches_the_new_one_old_classes():
    state, _ = learner().train({}, received(3), FIRST, data(0, 1))
    before = received(5)
    sent = [
        learner(**PLAIN, flow_memory=weight).train(state, before, SECOND, data(2, 3))
        for weight in (0.0, 1.0)
    ]
    free, held = (update.payload for _, update in sent)
    assert exact(free)["base"] == exact(held)["base"]
    assert exact(free)["flow"] != exact(held)["flow"]


def test_mixed_precision_trains_all_of_the_flow_and_the_head():
    client, sent = learner(training={"precision": "bfloat16"}), received()
    _, update = client.train({}, sent, FIRST, data(0, 1))
    for group, tensors in update.payload.items():
        for name, values in tensors.items():
            assert values.dtype == np.float32
            assert not np.array_equal(values, sent[group][name]), name


# ---- what it draws and keeps


def test_draws_are_the_clients_own_and_those_of_a_round_and_repeat():
    def loss(client=0, number=1):
        stage = replace(FIRST, round=number)
        made = learner(client=client, replay=5.0)
        return made.train({}, received(), stage, data(0, 1))[1].metrics["loss"]

    assert loss() == loss()
    assert abs(loss() - loss(client=1)) > 1e-3
    assert abs(loss() - loss(number=2)) > 1e-3


def test_the_old_model_and_flow_are_kept_while_a_task_lasts():
    state, _ = learner().train({}, received(3), FIRST, data(0, 1))
    assert state["memory/teacher"] == {}
    start = received(5)
    state, _ = learner().train(state, start, SECOND, data(2, 3))
    kept = exact(state)["memory/teacher"]
    flow = {f"flow.{name}": v for name, v in exact(start)["flow"].items()}
    assert kept == {**exact(start)["base"], **flow}
    last = replace(THIRD, ends_task=True)
    state, _ = learner().train(state, received(), last, data(2, 3))
    assert state["memory/teacher"] == {}
    assert state["memory/classes"]["known"].tolist() == [0, 1, 2, 3]


def test_without_examples_all_comes_back_as_it_was():
    sent, some = received(), data(2, 3)
    none = replace(some, train=Examples(some.train.x[:0], some.train.y[:0]))
    state, _ = learner().train({}, received(3), FIRST, data(0, 1))
    _, update = learner().train(state, sent, SECOND, none)
    assert update.num_examples == 0
    assert exact(update.payload) == exact(sent)


def test_predictions_need_no_flow():
    sent = received()
    x = data(0).test.x
    found = learner().predict({}, {"base": sent["base"]}, 0, x).detach()
    base = {n: v.astype(float) for n, v in sent["base"].items()}
    expected = head(base, body(base, x.numpy().astype(float)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
