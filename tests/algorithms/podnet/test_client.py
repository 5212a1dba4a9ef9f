"""PODNet's learner against plain autograd, and what it keeps."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from clients.podnet import PodNet
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.client import model_bytes
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.podnet import PodNetParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=False)
LAST = TaskStage(round=3, task=1, starts_task=False, ends_task=True)
RATE = 0.01


def network(params):
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 3), nn.Tanh()
    )
    model = MultiHeadModel(
        body, features=3, input_shape=(1, 4, 4), tasks=1, classes=4, single_head=True
    )
    PodNet.replace_heads(model, params)
    return model


def learner(epochs=2, client=0, **given):
    params = PodNetParams(**{"proxies": 2, "memory_policy": "herding", **given})
    training = Training(epochs=epochs, batch_size=100, learning_rate=RATE)
    where = ClientContext(client=client, seed=0, training=training)
    return PodNet(params, network(params), where)


def data(task, count=12):
    draw = torch.Generator().manual_seed(task)
    splits = [torch.randn(count, 1, 4, 4, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0, 0, 0] > 0).long() + 2 * task) for x in splits)
    return TaskData(*parts, classes=4)


def start(one, shift=0.0):
    draw = np.random.default_rng(0)
    found = snapshot(one.model, one.model.shared_names())
    moved = {n: v + shift * draw.normal(size=v.shape) for n, v in found.items()}
    return {"base": {name: np.float32(v) for name, v in moved.items()}}


# ---------------------------------------------------------------- the oracle


def leaves(base):
    return {n: torch.tensor(np.asarray(v)).requires_grad_() for n, v in base.items()}


def seen_by(p, x):
    maps = functional.conv2d(x, p["body.0.weight"], p["body.0.bias"], padding=1)
    return maps, torch.tanh(maps.flatten(1) @ p["body.2.weight"].T + p["body.2.bias"])


def classified(p, h):
    theta = p["heads.0.proxies"]
    lengths = h.norm(dim=1)[:, None, None] * theta.norm(dim=2)
    cosines = torch.stack([h @ of_class.T for of_class in theta], 1) / lengths
    weights = cosines.exp() / cosines.exp().sum(2, keepdim=True)
    return p["heads.0.scale"] * (weights * cosines).sum(2)


def nca(z, y, margin):
    own = functional.one_hot(y, z.shape[1]).bool()
    others = (z.exp() * ~own).sum(1).log()
    return (others - z[own] + margin).clamp(min=0).mean()


def vectors(maps):
    both = torch.cat([(maps**2).sum(3).flatten(1), (maps**2).sum(2).flatten(1)], 1)
    return both / both.norm(dim=1, keepdim=True)


def objective(p, old, x, y, params, factor):
    maps, h = seen_by(p, x)
    loss = nca(classified(p, h), y, params.margin * p["heads.0.scale"])
    if old is None:
        return loss
    old_maps, old_h = (found.detach() for found in seen_by(old, x))
    spatial = ((vectors(maps) - vectors(old_maps)).square().sum(1) + 1e-20).sqrt()
    cosines = (h * old_h).sum(1) / (h.norm(dim=1) * old_h.norm(dim=1))
    terms = params.spatial_strength * spatial.mean()
    return loss + factor * (terms + params.flat_strength * (1 - cosines).mean())


def trained(base, old, x, y, params, *, factor=0.0, resting=(), steps=2):
    p = leaves(base)
    optimizer = torch.optim.Adam(p.values(), lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        objective(p, old, x, y, params, factor).backward()
        p["heads.0.proxies"].grad[list(resting)] = 0
        optimizer.step()
    return {name: tensor.detach().numpy() for name, tensor in p.items()}


def assert_same(found, expected, names=None):
    for name in names or expected:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-5, err_msg=name)


def both(task, memory):
    """Return the task's samples and those that are remembered."""
    kept = [torch.tensor(np.asarray(memory[name])) for name in "xy"]
    return (
        torch.cat([data(task).train.x, kept[0]]),
        torch.cat([data(task).train.y, kept[1].long()]),
    )


# ---------------------------------------------------------------- training


def test_the_first_task_is_learned_by_the_loss_of_the_classifier_alone():
    one = learner()
    received = start(one)
    state, update = one.train({}, received, FIRST, data(0))
    x, y = data(0).train
    expected = trained(received["base"], None, x, y, one.params)
    assert_same(update.payload["base"], expected)
    assert update.num_examples == 12
    moved = update.payload["base"]["heads.0.scale"] - received["base"]["heads.0.scale"]
    assert abs(moved) > 1e-3
    assert state["memory/teacher"] == {}


def test_later_tasks_are_held_near_what_the_old_network_sees():
    one = learner(memory_samples=4)
    state, _ = one.train({}, start(one), FIRST, data(0))
    received = start(one, shift=0.1)
    one = learner(memory_samples=4)  # a process may have ended meanwhile
    state, first = one.train(state, received, SECOND, data(1))
    x, y = both(1, state["memory"])
    old, factor = leaves(received["base"]), math.sqrt(4 / 2)
    given = {"factor": factor, "resting": (0, 1)}
    expected = trained(received["base"], old, x, y, one.params, **given)
    assert_same(first.payload["base"], expected)
    assert state["memory/teacher"]
    stored = {group: state[group] for group in ("memory", "memory/classes", "heads")}
    assert model_bytes(one, state, {}) == model_bytes(one, stored, {}) > 4 * 16 * 4
    resting = first.payload["base"]["heads.0.proxies"][:2]
    np.testing.assert_array_equal(resting, received["base"]["heads.0.proxies"][:2])
    assert not any(part.training for part in one._old_body.modules())
    free = trained(received["base"], None, x, y, one.params, resting=(0, 1))
    assert np.abs(expected["body.0.weight"] - free["body.0.weight"]).max() > 1e-3


def test_over_the_rounds_of_a_task_the_old_network_stays_the_same():
    one = learner(memory_samples=4)
    state, _ = one.train({}, start(one), FIRST, data(0))
    received = start(one, shift=0.1)
    state, _ = one.train(state, received, SECOND, data(1))
    now = start(one, shift=0.3)
    state, update = one.train({**state, "optimizer": {}}, now, THIRD, data(1))
    x, y = both(1, state["memory"])
    given = {"factor": math.sqrt(2), "resting": (0, 1)}
    old = leaves(received["base"])
    expected = trained(now["base"], old, x, y, one.params, **given)
    assert_same(update.payload["base"], expected)


def test_a_class_that_comes_again_is_learned_again():
    one = learner(epochs=1)
    state, _ = one.train({}, start(one), FIRST, data(0))
    mixed = Examples(data(0).train.x, torch.arange(12) % 3)
    again = TaskData(mixed, data(0).valid, data(0).test, 4)
    received = start(one)
    _, update = one.train(state, received, SECOND, again)
    change = update.payload["base"]["heads.0.proxies"]
    assert (change != received["base"]["heads.0.proxies"]).any((1, 2)).all()
    assert one._weight == 1  # classes 0 and 1 are old, and none of the three rests


def test_without_strength_nothing_is_held():
    one = learner(spatial_strength=0.0, flat_strength=0.0, memory_samples=4)
    state, _ = one.train({}, start(one), FIRST, data(0))
    received = start(one)
    state, update = one.train(state, received, SECOND, data(1))
    x, y = both(1, state["memory"])
    expected = trained(received["base"], None, x, y, one.params, resting=(0, 1))
    assert_same(update.payload["base"], expected)


# ---------------------------------------------------------------- after a task


def test_the_proxies_are_tuned_on_the_kept_samples_after_a_task():
    given = {"memory_samples": 4, "finetune_epochs": 3}
    ends = {}
    for epochs in (0, 3):
        one = learner(**{**given, "finetune_epochs": epochs})
        state, _ = one.train({}, start(one), FIRST, data(0))
        state, update = one.train(state, start(one), SECOND, data(1))
        ends[epochs] = one.train({**state}, update.payload, LAST, data(1))
    before, after = (update.payload["base"] for _, update in ends.values())
    memory = ends[3][0]["memory"]
    assert sorted(memory["y"].tolist()) == [0, 1, 2, 3]

    p = leaves(before)
    x, y = (torch.tensor(np.asarray(memory[name])) for name in "xy")
    h = seen_by(p, x)[1].detach()
    optimizer = torch.optim.Adam([p["heads.0.proxies"]], lr=RATE / 2)
    for _ in range(3):
        optimizer.zero_grad()
        margin = one.params.margin * p["heads.0.scale"].detach()
        nca(classified(p, h), y.long(), margin).backward()
        optimizer.step()
    assert_same(after, {n: tensor.detach().numpy() for n, tensor in p.items()})
    moved = np.abs(after["heads.0.proxies"] - before["heads.0.proxies"])
    assert (moved.max((1, 2)) > 1e-3).all()
    for name in before.keys() - {"heads.0.proxies"}:
        np.testing.assert_array_equal(after[name], before[name])


def test_the_first_task_is_not_tuned():
    ends = []
    for epochs in (0, 20):
        one = learner(finetune_epochs=epochs)
        ends.append(one.train({}, start(one), FIRST, data(0))[1].payload["base"])
    assert_same(*ends)


def test_kept_are_the_samples_nearest_to_the_mean_feature_of_their_class():
    one = learner(memory_samples=2)
    state, update = one.train({}, start(one), FIRST, data(0))
    p = leaves(update.payload["base"])
    x, y = data(0).train
    h = seen_by(p, x)[1].detach()
    unit = h / h.norm(dim=1, keepdim=True)
    for label in (0, 1):
        rows = torch.nonzero(y == label)[:, 0]
        gaps = (unit[rows] - unit[rows].mean(0)).norm(dim=1)
        (kept,) = state["memory"]["x"][state["memory"]["y"] == label]
        np.testing.assert_array_equal(kept, x[rows[gaps.argmin()]])


def test_samples_are_kept_when_a_task_ends_and_stay_until_the_next_has():
    one = learner(memory_samples=4)
    state, _ = one.train({}, start(one), FIRST, data(0))
    assert state["memory"]["task"].tolist() == [0, 0, 0, 0]
    after, _ = one.train(state, start(one), SECOND, data(1))
    assert after["memory"] is state["memory"]
    last, update = one.train(after, start(one), LAST, data(1))
    assert sorted(last["memory"]["task"].tolist()) == [0, 0, 1, 1]
    assert update.num_examples == 16
    assert last["memory/teacher"] == {}


def test_a_task_that_is_met_again_is_not_joined_with_its_own_samples():
    one = learner(memory_samples=4)
    state, _ = one.train({}, start(one), FIRST, data(0))
    _, update = one.train(state, start(one), FIRST, data(0))
    assert update.num_examples == 12


def test_a_client_without_samples_of_a_task_sends_what_it_received():
    one = learner()
    none = Examples(torch.empty(0, 1, 4, 4), torch.empty(0, dtype=torch.int64))
    received = start(one)
    state, update = one.train({}, received, FIRST, TaskData(none, none, none, 4))
    assert update.num_examples == 0
    assert_same(update.payload["base"], received["base"])
    assert not state["memory"]


def test_samples_that_are_drawn_differ_from_client_to_client():
    drawn = []
    for client in (0, 1):
        one = learner(client=client, memory_samples=2, memory_policy="balanced")
        state, _ = one.train({}, start(one), FIRST, data(0))
        drawn.append(state["memory"]["x"].tolist())
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("flat", [0.0, 1.0])
def test_a_body_without_maps_is_held_by_its_features_alone(flat):
    params = PodNetParams(proxies=2, flat_strength=flat, spatial_strength=1e6)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model = MultiHeadModel(
        body, features=3, input_shape=(3,), tasks=1, classes=4, single_head=True
    )
    PodNet.replace_heads(model, params)
    where = ClientContext(0, 0, Training(epochs=1, batch_size=9, learning_rate=RATE))
    one = PodNet(params, model, where)
    x = torch.randn(8, 3)
    one._x, one._maps, one._weight = x, [], 2.0
    one._old_body = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).requires_grad_(False)
    hidden = model.body(x).detach()
    found = one.penalty(torch.arange(8), hidden)
    cosines = functional.cosine_similarity(hidden, one._old_body(x))
    assert float(found) == pytest.approx(2 * flat * float((1 - cosines).mean()))
