"""FedSpace's client: its loss in NumPy, what it measures, and what it keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import exact
from space_cases import FEATURES, Draws, Network, loss_by_hand
from torch import nn

from clients.fedavg import Sgd
from clients.fedspace.client import FedSpace
from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.client import model_bytes
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.tensors import snapshot
from strategies.fedspace import FedSpaceParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)
PLAIN = {"prototype_weight": 0.0, "representation_weight": 0.0}
CLASSES, BATCH = 6, 16


def model(grown=None, params=None):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(9, FEATURES), nn.Tanh())
    made = MultiHeadModel(
        body,
        features=FEATURES,
        input_shape=(1, 3, 3),
        tasks=1,
        classes=CLASSES,
        single_head=True,
    )
    if params is not None:
        FedSpace.replace_heads(made, params)
    if grown:
        made.restrict_head(range(grown))
    return made


def learner(grown=None, client=0, training=None, **params):
    given = FedSpaceParams(**params)
    rule = {"epochs": 1, "batch_size": BATCH, "learning_rate": 0.01}
    context = ClientContext(client, 0, Training(**rule | (training or {})))
    return FedSpace(given, model(grown, given), context)


def received(held=(), seed=1, turns=4):
    network = model(params=FedSpaceParams(rotations=turns == 4))
    draw = np.random.default_rng(seed)
    base = snapshot(network, network.shared_names())
    known = np.isin(np.arange(CLASSES), held)
    means = np.where(known[:, None], draw.normal(size=(CLASSES, FEATURES)), 0)
    prototypes = {"means": means, "held": known, "radius": 0.4 * bool(held)}
    return {
        "base": {
            n: draw.normal(size=v.shape).astype(np.float32) for n, v in base.items()
        },
        "prototypes": {n: np.asarray(a, np.float32) for n, a in prototypes.items()},
    }


def data(*labels, count=12):
    draw = torch.Generator().manual_seed(1)
    y = torch.tensor(labels).repeat(count)[:count]
    parts = (Examples(torch.randn(count, 1, 3, 3, generator=draw), y) for _ in range(3))
    return TaskData(*parts, classes=CLASSES)


# ---- the loss


def test_at_first_there_is_only_the_entropy_over_the_turns_of_the_tasks_classes():
    client, sent, task = learner(), received(), data(2, 4)
    _, update = client.train({}, sent, FIRST, task)
    expected = loss_by_hand(sent, task.train, None, (2, 4), client.params, range(6))
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("held", "grown", "more"),
    [
        ((0, 1, 2), None, {}),
        ((0, 1, 5), None, {"prototype_weight": 0.0}),
        ((0, 1, 5), None, {"representation_weight": 0.0, "temperature": 1.5}),
        ((2, 3), None, {}),
        ((0, 2), None, {"rotations": False, "representation_temperature": 0.2}),
        ((0, 1, 5), 5, {"temperature": 0.5}),
        ((5,), 5, {}),
    ],
)
def test_the_loss_of_a_later_task(held, grown, more):
    weights = {"prototype_weight": 0.7, "representation_weight": 0.3}
    more = {"temperature": 0.3} | weights | more
    turns = 1 if more.get("rotations") is False else 4
    state, _ = learner(rotations=turns == 4).train(
        {}, received(turns=turns), FIRST, data(1, 3)
    )
    client, sent, task = learner(grown, **more), received(held, 2, turns), data(2, 3)
    _, update = client.train(state, sent, SECOND, task)
    draws = Draws(sent["prototypes"], BATCH, number=2)
    there = range(grown or CLASSES)
    expected = loss_by_hand(sent, task.train, draws, (1, 2, 3), client.params, there)
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-4)


def test_with_every_part_off_a_client_learns_as_fedavgs_does():
    off = {**PLAIN, "rotations": False, "temperature": 1.0}
    task, sent = data(*range(CLASSES)), received((0, 1), turns=1)
    client = learner(**off, training={"epochs": 3, "batch_size": 5})
    _, update = client.train({}, sent, FIRST, task)
    plain = Sgd(Params(), model(), client.context)
    _, expected = plain.train({}, {"base": sent["base"]}, FIRST, task)
    assert exact({"": update.payload["base"]}) == exact({"": expected.payload["base"]})


def test_both_losses_reach_what_they_are_for():
    sent, task = received((0, 1)), data(2, 3)
    by_sgd = {"batch_size": 100, "optimizer": OptimizerChoice("sgd")}

    def learned(**more):
        client = learner(training=by_sgd, **PLAIN | more)
        return client.train({}, sent, SECOND, task)[1].payload["base"]

    plain = learned()
    for name, part in (("prototype", "heads"), ("representation", "body")):
        found = learned(**{f"{name}_weight": 50.0})
        moved = {k for k in plain if not np.array_equal(plain[k], found[k])}
        assert moved == {k for k in plain if k.startswith(part)}


def test_mixed_precision_trains_all_of_the_network():
    sent = received((0, 1))
    client = learner(training={"precision": "bfloat16"})
    _, update = client.train({}, sent, SECOND, data(2, 3))
    for group, tensors in update.payload.items():
        for name, values in tensors.items():
            assert values.dtype == np.float32
            assert not np.array_equal(values, sent[group][name]), name


# ---- what it measures, draws and keeps


def test_prototypes_are_those_of_upright_images_in_the_trained_model():
    sent, task = received((0, 1)), data(2, 4)
    _, update = learner().train({}, sent, SECOND, task)
    found, y = update.payload["prototypes"], task.train.y.numpy()
    hidden = Network(update.payload["base"]).body(task.train.x.numpy().astype(float))
    spread = [np.trace(np.cov(hidden[y == c].T)) / FEATURES for c in (2, 4)]
    for label in (2, 4):
        expected = hidden[y == label].mean(0)
        np.testing.assert_allclose(found["means"][label], expected, rtol=1e-4)
    assert found["held"].tolist() == [0, 0, 1, 0, 1, 0]
    assert found["radius"] == pytest.approx(np.sqrt(np.mean(spread)), rel=1e-4)
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    assert update.num_examples == 12


def test_a_client_keeps_its_first_radius_and_the_classes_that_it_has_met():
    state, first = learner().train({}, received(), FIRST, data(4, 2))
    state, second = learner().train(state, received((2, 4)), SECOND, data(1, 2))
    state, third = learner().train(state, received((2, 4), 5), THIRD, data(1, 2))
    radii = [one.payload["prototypes"]["radius"] for one in (first, second, third)]
    assert radii[0] == radii[1] == radii[2] > 0
    assert state.keys() == {"heads", "optimizer", "memory/classes"}
    assert state["memory/classes"]["known"].tolist() == [1, 2, 4]
    # Neither prototypes nor the optimizer: classes and radius, and the network.
    bare = {k: v for k, v in state.items() if k != "optimizer"}
    sent = received((2, 4))
    stored = model_bytes(learner(), state, sent)
    assert stored == model_bytes(learner(), bare, {"base": sent["base"]})


def test_without_examples_a_client_holds_nothing_and_waits_for_its_radius():
    sent, some = received((0, 1)), data(2, 3)
    none = replace(some, train=Examples(some.train.x[:0], some.train.y[:0]))
    state, update = learner().train({}, sent, FIRST, none)
    assert update.num_examples == 0
    assert exact({"": update.payload["base"]}) == exact({"": sent["base"]})
    assert not any(values.any() for values in update.payload["prototypes"].values())
    state, later = learner().train(state, sent, SECOND, some)
    assert later.payload["prototypes"]["radius"] > 0
    _, last = learner().train(state, sent, THIRD, none)
    radii = [one.payload["prototypes"]["radius"] for one in (later, last)]
    assert radii[0] == radii[1]


def test_draws_are_the_clients_own_and_those_of_a_round_and_repeat():
    def loss(client=0, number=1):
        stage = replace(FIRST, round=number)
        made = learner(client=client, prototype_weight=5.0)
        sent = received((0, 1))
        return made.train({}, sent, stage, data(2, 3))[1].metrics["loss"]

    assert loss() == loss()
    assert abs(loss() - loss(client=1)) > 1e-3
    assert abs(loss() - loss(number=2)) > 1e-3


def test_predictions_are_of_upright_images_and_need_no_prototypes():
    sent, x = received(), data(0).test.x
    found = learner(temperature=0.5).predict({}, {"base": sent["base"]}, 0, x)
    network = Network(sent["base"])
    expected = network.logits(network.body(x.numpy().astype(float)), 0.5)[:, ::4]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-4, atol=1e-4)


# ---- what cannot be turned


@pytest.mark.parametrize("shape", [(9,), (1, 3, 4), (-1,)])
def test_other_inputs_than_square_images_need_rotations_off(shape):
    network = model()
    network.input_shape = shape
    sentence = r"^strategy\.rotations: got True, expected false for inputs other than"
    with pytest.raises(ConfigError, match=sentence):
        FedSpace.replace_heads(network, FedSpaceParams())
    FedSpace.replace_heads(network, FedSpaceParams(rotations=False))
    assert network.heads[0].weight.shape == (CLASSES, FEATURES)


def test_frozen_features_are_not_turned():
    network = model()
    network.body.frozen_features = nn.Identity()
    with pytest.raises(ConfigError, match=r"square images of a trained network$"):
        FedSpace.replace_heads(network, FedSpaceParams())
