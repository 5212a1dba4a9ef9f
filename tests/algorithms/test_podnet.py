"""PODNet's classifier, its distances, its learner against plain autograd, and a run."""

import math

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from torch import nn
from torch.nn import functional
from watched_fit import Watched

from clients.podnet import (
    LocalSimilarity,
    PodNet,
    margin_loss,
    spatial_distance,
    stage_outputs,
    stages,
)
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.algorithms.local_training import Batch
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.convolutional import Mlp, ResNet18, SmallNet
from fcl_flower.models.heads import CLOSED, MultiHeadModel
from fcl_flower.rounds.client import model_bytes
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.podnet import PodNetParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=False)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
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


# ---- the oracle


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


# ---- training


def test_the_first_task_is_learned_by_the_loss_of_the_classifier_alone():
    one = learner()
    received = start(one)
    state, update = one.train(Turn({}, received, FIRST, data(0)))
    x, y = data(0).train
    expected = trained(received["base"], None, x, y, one.params)
    assert_same(update.payload["base"], expected)
    assert update.num_examples == 12
    moved = update.payload["base"]["heads.0.scale"] - received["base"]["heads.0.scale"]
    assert abs(moved) > 1e-3
    assert state["memory/teacher"] == {}


def test_later_tasks_are_held_near_what_the_old_network_sees():
    one = learner(memory_samples=4)
    state, _ = one.train(Turn({}, start(one), FIRST, data(0)))
    received = start(one, shift=0.1)
    one = learner(memory_samples=4)  # a process may have ended meanwhile
    watched = Watched(one)
    state, first = one.train(Turn(state, received, SECOND, data(1)))
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
    assert not any(part.training for part in watched["old_body"].modules())
    free = trained(received["base"], None, x, y, one.params, resting=(0, 1))
    assert np.abs(expected["body.0.weight"] - free["body.0.weight"]).max() > 1e-3


def test_a_class_that_comes_again_is_learned_again():
    one = learner(epochs=1)
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(one), FIRST, data(0)))
    mixed = Examples(data(0).train.x, torch.arange(12) % 3)
    again = TaskData(mixed, data(0).valid, data(0).test, 4)
    received = start(one)
    _, update = one.train(Turn(state, received, SECOND, again))
    change = update.payload["base"]["heads.0.proxies"]
    assert (change != received["base"]["heads.0.proxies"]).any((1, 2)).all()
    assert (
        watched["strength"] == 1
    )  # classes 0 and 1 are old, and none of the three rests


# ---- after a task


def test_the_proxies_are_tuned_on_the_kept_samples_after_a_task():
    given = {"memory_samples": 4, "finetune_epochs": 3}
    ends = {}
    for epochs in (0, 3):
        one = learner(**{**given, "finetune_epochs": epochs})
        state, _ = one.train(Turn({}, start(one), FIRST, data(0)))
        state, update = one.train(Turn(state, start(one), SECOND, data(1)))
        ends[epochs] = one.train(Turn({**state}, update.payload, LAST, data(1)))
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


def head(scale=3.0):
    torch.manual_seed(0)
    return LocalSimilarity(features=4, classes=3, proxies=2, scale=scale)


def test_proxies_that_rest_count_and_are_not_trained():
    layer, x = head(), torch.randn(5, 4)
    with torch.no_grad():
        usual = layer(x)
    layer.resting = torch.tensor([True, False, True])
    found = layer(x)
    torch.testing.assert_close(found.detach(), usual)
    found.square().sum().backward()
    assert [bool(rows.any()) for rows in layer.proxies.grad] == [False, True, False]
    assert layer.scale.grad.any()


LOGITS = np.array([[2.0, 0.5, -1.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
LABELS = [0, 2, 1]


def nca_by_sample(logits, labels, margin):
    """Return equation 9, sample by sample."""
    found = []
    for z, y in zip(logits, labels, strict=True):
        others = sum(np.exp(value) for c, value in enumerate(z) if c != y)
        found.append(max(0.0, -np.log(np.exp(z[y] - margin) / others)))
    return found


def test_the_loss_compares_the_right_class_less_the_margin_with_the_others():
    terms = nca_by_sample(LOGITS, LABELS, 0.6)
    assert terms[0] == 0 < min(terms[1:])  # 2 - 0.6 is more than log(e^0.5 + e^-1)
    found = margin_loss(torch.tensor(LOGITS), torch.tensor(LABELS), 0.6)
    assert float(found) == pytest.approx(np.mean(terms))


def maps(seed):
    draw = torch.Generator().manual_seed(seed)
    shapes = ((3, 2, 4, 5), (3, 6, 2, 3))
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def pooled(sample):
    """Return the sums over width and over height of the squares, of length 1."""
    channels, height, width = sample.shape
    by_row = [
        sum(sample[c, h, w] ** 2 for w in range(width))
        for c in range(channels)
        for h in range(height)
    ]
    by_column = [
        sum(sample[c, h, w] ** 2 for h in range(height))
        for c in range(channels)
        for w in range(width)
    ]
    found = np.array(by_row + by_column)
    return found / np.sqrt((found**2).sum())


def test_maps_are_compared_by_their_sums_over_width_and_height():
    new, old = maps(0), maps(1)
    of_stages = [
        np.mean(
            [
                np.sqrt(((pooled(a) - pooled(b)) ** 2).sum())
                for a, b in zip(one.numpy(), other.numpy(), strict=True)
            ]
        )
        for one, other in zip(new, old, strict=True)
    ]
    assert of_stages[0] != pytest.approx(of_stages[1], rel=0.01)
    assert float(spatial_distance(new, old)) == pytest.approx(np.mean(of_stages))


def test_a_network_that_has_not_moved_yet_has_gradients():
    new = [one.requires_grad_() for one in maps(0)]
    found = spatial_distance(new, maps(0))
    found.backward()
    assert float(found.detach()) == 0
    assert all(torch.isfinite(one.grad).all() for one in new)


def test_a_stage_is_a_convolution_or_a_block_of_them():
    body = SmallNet()
    assert stages(body) == [body.conv1, body.conv2]
    body = ResNet18()
    assert stages(body) == [body.stem, *body.blocks]
    assert stages(Mlp(3)) == []


def test_the_outputs_are_those_of_the_last_call_alone():
    torch.manual_seed(0)
    body, x = SmallNet(), torch.rand(2, 1, 8, 8)
    with stage_outputs(body) as found:
        body(torch.rand(3, 1, 8, 8))
        body(x)
        first = torch.relu(body.conv1(x))
        assert [tuple(one.shape) for one in found[:2]] == [(2, 16, 8, 8), (2, 32, 8, 8)]
        torch.testing.assert_close(found[1], body.conv2(first))
    found.clear()
    body(x)
    assert found == []


def small(folder, **values):
    usual = {
        "strategy": "podnet",
        "scenario": {"name": "class-incremental", "split": "iid"},
        "growing_head": True,
        "tasks": 4,
        "rounds": 3,
        "epochs": 3,
        "learning_rate": 2e-3,
        "seed": 1,
    }
    return tiny(folder, **{**usual, **values})


def test_settings_reach_the_network(tmp_path):
    run = resolve(small(tmp_path, **{"strategy.proxies": 3, "strategy.scale": 2.5}))
    model = Built(run).model()
    assert model.heads[0].proxies.shape == (8, 3, 64)
    assert model.heads[0].scale.tolist() == [2.5]


def test_over_the_rounds_of_a_task_the_old_network_stays_the_same():
    one = learner(memory_samples=4)
    state, _ = one.train(Turn({}, start(one), FIRST, data(0)))
    received = start(one, shift=0.1)
    state, _ = one.train(Turn(state, received, SECOND, data(1)))
    now = start(one, shift=0.3)
    state, update = one.train(Turn({**state, "optimizer": {}}, now, THIRD, data(1)))
    x, y = both(1, state["memory"])
    given = {"factor": math.sqrt(2), "resting": (0, 1)}
    old = leaves(received["base"])
    expected = trained(now["base"], old, x, y, one.params, **given)
    assert_same(update.payload["base"], expected)


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
    old_body = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).requires_grad_(False)
    hidden, none = model.body(x).detach(), torch.empty(8)
    batch = Batch(x, hidden, none, none, torch.arange(8), None)
    found = one._distance(batch, [], old_body)
    cosines = functional.cosine_similarity(hidden, old_body(x))
    assert float(found) == pytest.approx(flat * float((1 - cosines).mean()))


def by_hand(x, proxies, scale):
    """Return eta * sum_k softmax(a)_k a_k, one sample and one class after the other."""
    found = np.zeros((len(x), len(proxies)))
    for place, class_ in np.ndindex(found.shape):
        h = x[place] / np.sqrt((x[place] ** 2).sum())
        cosines = [h @ theta / np.sqrt((theta**2).sum()) for theta in proxies[class_]]
        weights = np.exp(cosines)
        found[place, class_] = scale * (weights @ cosines) / weights.sum()
    return found


def test_a_logit_is_the_weighted_mean_of_the_cosines_of_its_classs_proxies():
    layer, x = head(), torch.randn(5, 4)
    with torch.no_grad():
        found = layer(x)
    expected = by_hand(x.double().numpy(), layer.proxies.detach().double().numpy(), 3.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_proxies_start_with_length_1_in_the_mean_square_and_differ():
    torch.manual_seed(0)
    layer = LocalSimilarity(features=64, classes=50, proxies=10, scale=1.0)
    assert layer.proxies.shape == (50, 10, 64)
    assert float(layer.proxies.square().sum(2).mean().detach()) == pytest.approx(
        1, abs=0.02
    )
    assert float(layer.proxies[0].std(0).min().detach()) > 0.01
    assert layer.scale.tolist() == [1.0]


def test_a_class_that_the_head_does_not_have_yet_is_closed():
    model = MultiHeadModel(
        torch.nn.Flatten(),
        features=4,
        input_shape=(4,),
        tasks=1,
        classes=3,
        single_head=True,
    )
    x, layer = torch.randn(5, 4), head()
    model.heads = torch.nn.ModuleList([layer])
    before = model(x, 0)
    model.restrict_head([0, 2])
    assert (model(x, 0)[:, 1] == CLOSED).all()
    assert torch.equal(model(x, 0)[:, [0, 2]], before[:, [0, 2]])


def test_each_sample_is_cut_off_by_itself_and_has_no_gradient_then():
    logits = torch.tensor(LOGITS, requires_grad=True)
    margin_loss(logits, torch.tensor(LABELS), 0.6).backward()
    assert not logits.grad[0].any()
    # d/dz of log sum_{c != y} e^z_c - z_y, over three samples.
    share = np.exp([0.0, 3.0]) / np.exp([0.0, 3.0]).sum()
    np.testing.assert_allclose(logits.grad[1], [share[0] / 3, share[1] / 3, -1 / 3])


def test_closed_classes_are_not_compared_with():
    open_, closed = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0, CLOSED]])
    label = torch.tensor([0])
    assert margin_loss(closed, label, 0.5) == margin_loss(open_, label, 0.5)


def test_a_class_alone_has_nothing_to_learn_and_no_undefined_gradient():
    logits = torch.tensor([[1.0]], requires_grad=True)
    loss = margin_loss(logits, torch.tensor([0]), 0.6)
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad.tolist() == [[0.0]]


@pytest.mark.soak
@pytest.mark.run
def test_distillation_and_tuning_each_forget_less_than_going_without(tmp_path):
    found = {}
    for name, params in (
        ("whole", {}),
        ("not held", {"spatial_strength": 0.0, "flat_strength": 0.0}),
        ("not tuned", {"finetune_epochs": 0}),
    ):
        given = {f"strategy.{k}": v for k, v in {"memory_samples": 8, **params}.items()}
        run_in_process(small(tmp_path / name, **given))
        found[name] = summary_of(tmp_path / name)["average_accuracy"]
    assert found["whole"] > found["not held"] + 0.02
    assert found["whole"] > found["not tuned"] + 0.1
    assert found["whole"] > 0.8
