"""LANDER: weights and losses of a client by hand, what travels, a whole run."""

import math

import numpy as np
import pytest
import torch
from encoders import saved, saved_tokenizer
from fakes import exact, rounds_of, run_in_process, summary_of, tiny
from torch import nn

from clients.lander import Lander as Client
from fcl_flower.algorithms.base import (
    ClassPlan,
    ClientContext,
    ModelShape,
    ServerContext,
    Turn,
)
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds.checkpoint import MemoryStateStore
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.lander import LanderParams
from strategies.lander.server import ANCHORS, Lander
from strategies.target.server import SAMPLES

SHAPE = (1, 2, 2)
WIDTH = 3
FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)


def model(grown=False):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh())
    made = MultiHeadModel(
        body, features=6, input_shape=SHAPE, tasks=1, classes=6, single_head=True
    )
    if grown:
        made.restrict_head(range(5))
    return made


def learner(grown=False, batch=100, **params):
    training = Training(epochs=1, batch_size=batch, learning_rate=0.01)
    context = ClientContext(client=0, seed=0, training=training)
    return Client(LanderParams(**params), model(grown), context)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def received(**more):
    network = model()
    base = snapshot(network, network.shared_names())
    base |= {"projection.weight": drawn(WIDTH, 6, seed=1)}
    base |= {"projection.bias": drawn(WIDTH, seed=2)}
    return {"base": base, ANCHORS: {"anchors": drawn(6, WIDTH, seed=3)}, **more}


def samples(count=4):
    pixels = np.random.default_rng(4).integers(0, 256, (count, *SHAPE))
    return {
        "x": pixels.astype(np.uint8),
        "logits": drawn(count, 2, seed=5),
        "labels": np.array([0, 1]),
        "features": drawn(count, WIDTH, seed=6),
    }


def data(labels=(2, 3, 4), count=6):
    draw = torch.Generator().manual_seed(1)
    y = torch.tensor(labels).repeat(count)[:count]
    parts = (Examples(torch.randn(count, *SHAPE, generator=draw), y) for _ in range(3))
    return TaskData(*parts, classes=6)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def by_hand(x):
    """Return logits and projected features of what is received at first."""
    found = {n: values.astype(float) for n, values in received()["base"].items()}
    hidden = x.reshape(len(x), -1).astype(float) @ found["body.1.weight"].T
    hidden = np.tanh(hidden + found["body.1.bias"])
    logits = hidden @ found["heads.0.weight"].T + found["heads.0.bias"]
    return logits, hidden @ found["projection.weight"].T + found["projection.bias"]


def new_and_near(labels, open_to_new, radius):
    """Return the cross-entropy and the bounding loss of the examples."""
    examples = data(labels).train
    logits, features = by_hand(examples.x.numpy())
    places = [open_to_new.index(label) for label in examples.y.tolist()]
    entropy = -log_softmax(logits[:, open_to_new])[range(len(places)), places].mean()
    anchors = received()[ANCHORS]["anchors"][examples.y.numpy()].astype(float)
    return entropy, max(0.0, ((features - anchors) ** 2).mean() - radius)


# ---- clients


@pytest.mark.parametrize(
    ("classes", "old", "expected"),
    [
        # a = log2(8), b = 1 / 2; and a = log2(2), b = sqrt(1 / 2)
        (14, 3.5, (0.2 * (4 / 3) / 0.5, 0.4 * 3 * 0.5)),
        (2, 1, (0.2 * 2 * math.sqrt(2), 0.4 / math.sqrt(2))),
    ],
)
def test_the_weights_follow_the_numbers_of_classes(classes, old, expected):
    assert LanderParams().weights(classes, old) == pytest.approx(expected)
    doubled = LanderParams(current=0.4, previous=1.2).weights(classes, old)
    assert doubled == pytest.approx((2 * expected[0], 3 * expected[1]))


def test_the_loss_of_the_first_task_by_hand():
    _, update = learner().train(Turn({}, received(), FIRST, data()))
    entropy, near = new_and_near((2, 3, 4), list(range(6)), 0.015)
    assert near > 0.1
    assert update.metrics["loss"] == pytest.approx(entropy + 5 * near, rel=1e-5)


@pytest.mark.parametrize("grown", [False, True])
def test_the_loss_of_a_later_task_by_hand(grown):
    made = samples()
    client = learner(grown, anchor_weight=2.0, temperature=3.0)
    _, update = client.train(Turn({}, received(**{SAMPLES: made}), SECOND, data()))

    classes = 5 if grown else 6
    entropy, near = new_and_near((2, 3, 4), list(range(2, classes)), 0.015)
    logits, features = by_hand((made["x"] / 255 - 0.5) / 0.25)
    learned = log_softmax(logits[:, [0, 1]] / 3)
    taught = log_softmax(made["logits"].astype(float) / 3)
    kept = (np.exp(taught) * (taught - learned)).sum(1).mean()
    kept += ((features - made["features"]) ** 2).mean()
    a, b = math.log2(classes / 2 + 1), math.sqrt(2 / classes)
    expected = 0.2 * (1 + 1 / a) / b * (entropy + 2 * near) + 0.4 * a * b * kept
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_projection_is_trained_and_sent_with_the_model():
    start = received()
    state, update = learner().train(Turn({}, start, FIRST, data()))
    assert update.payload.keys() == {"base"}
    sent, before = update.payload["base"], start["base"]
    assert sent.keys() == before.keys()
    for name in before:
        assert not np.array_equal(sent[name], before[name]), name
    plain = learner().train(Turn({}, received(), FIRST, data()))
    free = learner(anchor_weight=0.0).train(Turn({}, received(), FIRST, data()))
    assert exact(free[1].payload) != exact(plain[1].payload)
    name = "projection.weight"
    assert np.array_equal(free[1].payload["base"][name], before[name])
    assert exact(state)[ANCHORS] == exact(start)[ANCHORS]


def test_anchors_and_samples_are_kept_for_later_rounds():
    first = received(**{SAMPLES: samples()})
    client = learner()
    state, _ = client.train(Turn({}, first, SECOND, data()))
    later = {"base": first["base"]}
    again = learner().train(Turn({**state, "optimizer": {}}, later, THIRD, data()))
    whole = learner().train(Turn({}, first, THIRD, data()))
    assert exact(again[1].payload) == exact(whole[1].payload)
    x = data().test.x
    expected, _ = by_hand(x.numpy())
    found = learner().predict(state, later, 1, x).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# ---- server


class FakeTrainer:
    def __init__(self):
        self.asked = []

    def anchors(self, names, encoder):
        assert (names, encoder) == (("a", "b"), "theirs")
        return drawn(2, 4)

    def synthesize_near(self, tensors, labels, params, number, anchors):
        self.asked.append((tensors["w"].tolist(), labels.tolist(), number))
        return {"x": anchors}


def server(seed=0):
    plan = ClassPlan(((0,), (0, 1)), ("a", "b"))
    context = ServerContext(seed, ModelShape(16), plan, FakeTrainer)
    made = Lander(LanderParams(encoder="theirs"), context)
    return made, made.init({"w": np.zeros(2, np.float32)})


def trained(state, shift=1.0):
    moved = {name: values + shift for name, values in state["base"].items()}
    return Update({"base": moved}, 3)


def test_the_server_starts_with_anchors_and_a_projection_of_the_seed():
    _, state = server()
    base = state["base"]
    assert base["projection.weight"].shape == (4, 16)
    assert base["projection.bias"].shape == (4,)
    assert base["projection.weight"].dtype == base["projection.bias"].dtype == "float32"
    assert 0.2 < abs(base["projection.weight"]).max() <= 0.25
    assert base["projection.weight"].min() < 0
    assert exact(server()[1]) == exact(state)
    assert exact(server(seed=1)[1]) != exact(state)


def test_anchors_are_sent_when_a_task_starts_and_samples_are_made_near_them():
    strategy, state = server()
    assert strategy.send(state, FIRST, 0).keys() == {"base", ANCHORS}
    state = strategy.combine(state, FIRST, {0: trained(state)})
    assert strategy.trainer.asked == [([1.0, 1.0], [0], 1)]
    assert exact({"": state[SAMPLES]})[""]["x"] == exact(state)[ANCHORS]["anchors"]
    sent = strategy.send(state, SECOND, 0)
    assert sent.keys() == {"base", ANCHORS, SAMPLES}
    assert strategy.send(state, THIRD, 0).keys() == {"base"}


# ---- whole runs


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A text encoder that reads digits."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(10))]
    return saved_tokenizer(saved(tmp_path_factory.mktemp("bert"), "bert"), words)


def run(folder, encoder, **values):
    given = {
        "strategy": "lander",
        "rounds": 2,
        "epochs": 10,
        "learning_rate": 0.003,
        "classes_per_task": 5,
        "max_train_per_class": 40,
        "scenario.split": "iid",
        "growing_head": True,
        "public_fraction": 0.0,
        "strategy.encoder": encoder,
        "strategy.synthetic_samples": 96,
        "strategy.synthetic_batch": 24,
        "strategy.warmup": 1,
        "strategy.student_epochs": 2,
    }
    return tiny(folder, **{**given, **values})


@pytest.mark.soak
@pytest.mark.run
def test_the_samples_hold_forgetting_back_and_are_counted(tmp_path, encoder):
    transport = run_in_process(run(tmp_path / "with", encoder))
    run_in_process(run(tmp_path / "without", encoder, **{"strategy.previous": 0.0}))

    found, control = (summary_of(tmp_path / name) for name in ("with", "without"))
    assert found["client_accuracy"][0][0] == control["client_accuracy"][0][0]
    assert found["forgetting"] < control["forgetting"] - 0.1
    # Pixels, five logits and 16 features of 96 samples once; 10 anchors at each start.
    # Compression takes less than a half.
    nominal = 2 * (96 * (64 + 5 * 4 + 16 * 4) + 2 * 10 * 16 * 4)
    assert nominal / 2 < found["bytes_by_kind"]["down"]["memory"] < nominal
    for place in transport.places.values():
        kept = MemoryStateStore(place).load(before=99).state
        assert kept[SAMPLES]["features"].shape == (96, 16)
        assert kept[ANCHORS]["anchors"].shape == (10, 16)
    assert not any(row["failed"] for row in rounds_of(tmp_path / "with"))
