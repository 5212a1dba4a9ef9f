"""TARGET: the clients' loss by hand, and what the server makes and sends."""

import math

import numpy as np
import pytest
import torch
from fakes import exact
from torch import nn

from clients.target import Target as Client
from fcl_flower.algorithms.base import ClassPlan, ClientContext, Params, ServerContext
from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.client import model_bytes
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.target import TargetParams
from strategies.target.server import MADE, SAMPLES, Target

SHAPE = (1, 2, 2)
FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)


def model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
    return MultiHeadModel(
        body, features=3, input_shape=SHAPE, tasks=1, classes=5, single_head=True
    )


def learner(network=None, batch=100, epochs=1, **params):
    training = Training(epochs=epochs, batch_size=batch, learning_rate=0.01)
    context = ClientContext(client=0, seed=0, training=training)
    return Client(TargetParams(**params), network or model(), context)


def data(labels=(2, 3, 4), count=6):
    draw = torch.Generator().manual_seed(1)
    y = torch.tensor(labels).repeat(count)[:count]
    parts = (Examples(torch.randn(count, *SHAPE, generator=draw), y) for _ in range(3))
    return TaskData(*parts, classes=5)


def samples(count=4):
    rng = np.random.default_rng(3)
    return {
        "x": rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8),
        "logits": rng.normal(size=(count, 2)).astype(np.float32),
        "labels": np.array([0, 1]),
    }


def start(**more):
    network = model()
    return {"base": snapshot(network, network.shared_names()), **more}


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def by_hand(x):
    """Return the initial model's logits in double precision."""
    found = {name: w.double().numpy() for name, w in model().state_dict().items()}
    hidden = x.reshape(len(x), -1).astype(float) @ found["body.1.weight"].T
    hidden = np.tanh(hidden + found["body.1.bias"])
    return hidden @ found["heads.0.weight"].T + found["heads.0.bias"]


def loss_by_hand(made, labels, open_to_new, alpha, temperature):
    """Return CE(new) + alpha KL(old model || model), over all samples."""
    examples = data(labels).train
    logits = by_hand(examples.x.numpy())
    places = [open_to_new.index(label) for label in examples.y.tolist()]
    entropy = -log_softmax(logits[:, open_to_new])[range(len(places)), places].mean()
    x = (made["x"] / 255 - 0.5) / 0.25
    learned = log_softmax(by_hand(x)[:, [0, 1]] / temperature)
    taught = log_softmax(made["logits"].astype(float) / temperature)
    return entropy + alpha * (np.exp(taught) * (taught - learned)).sum(1).mean()


# ---- clients


@pytest.mark.parametrize(
    ("labels", "open_to_new"),
    [((2, 3, 4), [2, 3, 4]), ((1, 4), [1, 2, 3, 4])],
    ids=["new", "one comes back"],
)
@pytest.mark.parametrize("params", [{}, {"alpha": 3.0, "temperature": 5.0}], ids=str)
def test_the_loss_of_a_client_by_hand(labels, open_to_new, params):
    made, client = samples(), learner(**params)
    _, update = client.train({}, start(**{SAMPLES: made}), SECOND, data(labels))
    weights = {"alpha": 25.0, "temperature": 2.0} | params
    expected = loss_by_hand(made, labels, open_to_new, **weights)
    assert update.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_step_is_that_of_plain_autograd():
    made, oracle = samples(), model()
    received = start(**{SAMPLES: made})
    _, update = learner(alpha=3.0).train({}, received, SECOND, data())

    optimizer, examples = torch.optim.Adam(oracle.parameters(), lr=0.01), data().train
    loss = nn.functional.cross_entropy(oracle(examples.x, 0)[:, 2:], examples.y - 2)
    x = torch.tensor((made["x"] / 255 - 0.5) / 0.25).float()
    taught = (torch.tensor(made["logits"]) / 2).softmax(1)
    learned = (oracle(x, 0)[:, :2] / 2).log_softmax(1)
    loss = loss + 3 * nn.functional.kl_div(learned, taught, reduction="batchmean")
    loss.backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)


def test_without_samples_a_client_trains_as_in_fedavg():
    plain = LocalTraining(Params(), model(), learner().context)
    state, update = learner().train({}, start(), FIRST, data())
    same, expected = plain.train({}, start(), FIRST, data())
    assert exact(update.payload) == exact(expected.payload)
    assert exact(state) == exact(same)


def test_the_samples_are_kept_until_others_come_and_used_in_every_round():
    first, second = samples(), samples(7)
    client = learner(epochs=2)
    state, update = client.train({}, start(**{SAMPLES: first}), SECOND, data())
    assert exact(state)[SAMPLES] == exact({"": first})[""]
    assert update.payload.keys() == {"base"}
    used = learner(epochs=2).train(state, start(), THIRD, data())
    without = learner(epochs=2).train({}, start(), THIRD, data())
    assert exact(used[1].payload) != exact(without[1].payload)
    assert used[0][SAMPLES] is state[SAMPLES]
    state, _ = client.train(used[0], start(**{SAMPLES: second}), SECOND, data())
    assert state[SAMPLES] is second


def test_samples_come_for_each_task_and_are_not_needed_for_a_prediction():
    client, received = learner(), start(**{SAMPLES: samples()})
    state, _ = client.train({}, received, SECOND, data())
    plain = {group: kept for group, kept in state.items() if group != SAMPLES}
    stored = model_bytes(client, plain, start())
    assert model_bytes(client, state, received) == stored
    x = data().test.x
    expected = client.predict({}, start(), 1, x)
    assert torch.equal(client.predict(state, received, 1, x), expected)


def batches_of(client, count):
    received = start(**{SAMPLES: samples(count)})
    client.begin(Turn({}, received, SECOND, data()))
    return client._old.batches


@pytest.mark.parametrize(("count", "batch", "parts"), [(7, 2, [3, 3, 1]), (2, 2, [1])])
def test_an_epoch_takes_each_sample_once(count, batch, parts):
    drawn = batches_of(learner(batch=batch), count)
    taken = [next(drawn) for _ in range(math.ceil(count / parts[0]))]
    assert [len(rows) for rows in taken][: len(parts)] == parts
    assert sorted(torch.cat(taken).tolist()) == list(range(count))
    again = batches_of(learner(batch=batch), count)
    assert next(again).tolist() == taken[0].tolist()


def test_a_client_without_examples_sends_what_it_received():
    empty = Examples(torch.empty(0, *SHAPE), torch.empty(0, dtype=torch.int64))
    nothing = TaskData(empty, empty, empty, classes=5)
    received = start(**{SAMPLES: samples()})
    state, update = learner().train({}, received, SECOND, nothing)
    assert exact(update.payload) == exact({"base": received["base"]})
    assert SAMPLES in state


# ---- server


class FakeTrainer:
    def __init__(self):
        self.asked = []

    def synthesize(self, tensors, labels, params, number):
        self.asked.append((tensors["w"].tolist(), labels.tolist(), params, number))
        return {"x": np.full((2, *SHAPE), number, np.uint8)}


def server(**params):
    plan = ClassPlan(until=((0, 1), (0, 1, 2), (0, 1, 2, 4)))
    context = ServerContext(0, classes=plan, trainer=FakeTrainer)
    made = Target(TargetParams(**params), context)
    return made, made.init({"w": np.zeros(2, np.float32)})


def update(*values, examples=1):
    return Update({"base": {"w": np.float32(values)}}, examples)


def after(strategy, state, stage):
    return strategy.aggregate_train(state, stage, {0: update(1, 1), 2: update(4, 7)})


def test_samples_of_all_classes_so_far_are_made_of_the_new_mean_when_a_task_ends():
    strategy, state = server(alpha=1.0)
    assert after(strategy, state, SECOND).keys() == {"base"}
    new = after(strategy, state, THIRD)
    assert new["base"]["w"].tolist() == [2.5, 4.0]
    assert new[SAMPLES]["x"][0, 0, 0, 0] == 3
    assert strategy.trainer.asked == [([2.5, 4.0], [0, 1, 2], strategy.params, 3)]


def test_after_the_last_task_nothing_is_made():
    strategy, state = server()
    last = TaskStage(round=5, task=2, starts_task=True, ends_task=True)
    assert after(strategy, state, last).keys() == {"base"}
    assert not strategy.trainer.asked


def test_a_client_gets_samples_in_its_first_round_of_a_later_task_only():
    strategy, state = server()
    state = after(strategy, state, FIRST)
    during = after(strategy, state, SECOND)
    for known in (state, during):
        sent = {
            stage: strategy.configure_train(known, stage, 0)
            for stage in (FIRST, SECOND, THIRD)
        }
        assert [SAMPLES in payload for payload in sent.values()] == [False, True, False]
        assert MADE not in sent[SECOND]
    late = TaskStage(round=3, task=1, starts_task=True, ends_task=True)
    assert SAMPLES in strategy.configure_train(during, late, 1)
    assert exact(during)[SAMPLES] == exact(state)[SAMPLES]
    newer = after(strategy, during, THIRD)
    assert exact(newer)[SAMPLES] != exact(state)[SAMPLES]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({}, r"groups \[\]: expected \['base'\]"),
        ({"base": {}}, r"base: tensors \['w'\] are missing"),
        ({"base": {"w": np.zeros(3, np.float32)}}, "expected float32 of shape"),
        ({"base": {"w": np.zeros(2, np.float64)}}, "expected float32 of shape"),
        (
            {"base": {"w": np.zeros(2, np.float32)}, SAMPLES: {"x": np.zeros(1)}},
            r"groups \['base', 'memory/samples'\]: expected \['base'\]",
        ),
    ],
)
def test_an_update_that_is_no_model_is_refused(payload, reason):
    strategy, state = server()
    state = after(strategy, state, FIRST)
    strategy.check_update(state, update(1, 2))
    with pytest.raises(WireError, match=reason):
        strategy.check_update(state, Update(payload, 1))


def test_a_sum_under_masks_is_aggregated_as_the_mean_that_it_is():
    strategy, state = server()
    state = after(strategy, state, FIRST)
    assert strategy.summands(state).keys() == {"base"}
    new = strategy.aggregate_sum(state, THIRD, update(2.5, 4.0, examples=2))
    assert exact(new) == exact(after(strategy, state, THIRD))


@pytest.mark.parametrize("key", ["alpha", "label_weight"])
def test_weights_may_be_zero_and_not_below(key):
    assert getattr(algorithm("target").params({key: 0.0}), key) == 0
    with pytest.raises(
        ConfigError, match=f"strategy.{key}: got -1.0, expected greater"
    ):
        algorithm("target").params({key: -1.0})


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [
        ("temperature", 0.0, "greater than 0"),
        ("norm_weight", -0.5, "greater than or equal to 0"),
        ("synthetic_samples", 0, "greater than or equal to 1"),
        ("synthetic_batch", 1, "greater than or equal to 2"),
        ("warmup", -1, "greater than or equal to 0"),
        ("generator_steps", 0, "greater than or equal to 1"),
        ("generator_width", 0, "greater than or equal to 1"),
        ("generator_noise", 0, "greater than or equal to 1"),
        ("student_epochs", 0, "greater than or equal to 1"),
    ],
)
def test_what_lies_below_its_range_is_refused(key, value, least):
    with pytest.raises(
        ConfigError, match=f"strategy.{key}: got {value}, expected {least}"
    ):
        algorithm("target").params({key: value})
