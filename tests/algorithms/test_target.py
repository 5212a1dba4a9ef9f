"""TARGET: the clients' loss, when samples are made and sent, and a run."""

import math

import numpy as np
import pytest
import torch
from fakes import exact, rounds_of, run_in_process, summary_of, tiny
from torch import nn
from watched_fit import Watched

from clients.target import Target as Client
from fcl_flower.algorithms.base import (
    ClassPlan,
    ClientContext,
    Params,
    ServerContext,
    Turn,
)
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds.checkpoint import MemoryStateStore
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
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


# ---- clients


# New classes alone; and one that comes back, which then is no old one.
@pytest.mark.parametrize(("labels", "first_open"), [((2, 3, 4), 2), ((1, 4), 1)])
def test_a_step_is_that_of_plain_autograd(labels, first_open):
    made, oracle = samples(), model()
    client = learner(alpha=3.0, temperature=5.0)
    _, update = client.train(Turn({}, start(**{SAMPLES: made}), SECOND, data(labels)))

    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    inputs, y = data(labels).train
    logits = oracle(inputs, 0)[:, first_open:]
    loss = nn.functional.cross_entropy(logits, y - first_open)
    x = torch.tensor((made["x"] / 255 - 0.5) / 0.25).float()
    taught = (torch.tensor(made["logits"]) / 5).softmax(1)
    learned = (oracle(x, 0)[:, :2] / 5).log_softmax(1)
    loss = loss + 3 * nn.functional.kl_div(learned, taught, reduction="batchmean")
    loss.backward()
    assert update.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)


def test_without_samples_a_client_trains_as_in_fedavg():
    plain = LocalTraining(Params(), model(), learner().context)
    state, update = learner().train(Turn({}, start(), FIRST, data()))
    same, expected = plain.train(Turn({}, start(), FIRST, data()))
    assert exact(update.payload) == exact(expected.payload)
    assert exact(state) == exact(same)


def test_the_samples_are_kept_until_others_come_and_used_in_every_round():
    first, second = samples(), samples(7)
    client = learner(epochs=2)
    state, update = client.train(Turn({}, start(**{SAMPLES: first}), SECOND, data()))
    assert exact(state)[SAMPLES] == exact({"": first})[""]
    assert update.payload.keys() == {"base"}
    used = learner(epochs=2).train(Turn(state, start(), THIRD, data()))
    without = learner(epochs=2).train(Turn({}, start(), THIRD, data()))
    assert exact(used[1].payload) != exact(without[1].payload)
    assert used[0][SAMPLES] is state[SAMPLES]
    state, _ = client.train(Turn(used[0], start(**{SAMPLES: second}), SECOND, data()))
    assert state[SAMPLES] is second


def batches_of(client, count):
    received = start(**{SAMPLES: samples(count)})
    watched = Watched(client)
    client.train(Turn({}, received, SECOND, data()))
    return watched["old"].batches


@pytest.mark.parametrize(("count", "batch", "parts"), [(7, 2, [3, 3, 1]), (2, 2, [1])])
def test_an_epoch_takes_each_sample_once(count, batch, parts):
    drawn = batches_of(learner(batch=batch), count)
    taken = [next(drawn) for _ in range(math.ceil(count / parts[0]))]
    assert [len(rows) for rows in taken][: len(parts)] == parts
    assert sorted(torch.cat(taken).tolist()) == list(range(count))
    again = batches_of(learner(batch=batch), count)
    assert next(again).tolist() == taken[0].tolist()


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
    return strategy.combine(state, stage, {0: update(1, 1), 2: update(4, 7)})


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
            stage: strategy.send(known, stage, 0) for stage in (FIRST, SECOND, THIRD)
        }
        assert [SAMPLES in payload for payload in sent.values()] == [False, True, False]
        assert MADE not in sent[SECOND]
    late = TaskStage(round=3, task=1, starts_task=True, ends_task=True)
    assert SAMPLES in strategy.send(during, late, 1)
    assert exact(during)[SAMPLES] == exact(state)[SAMPLES]
    newer = after(strategy, during, THIRD)
    assert exact(newer)[SAMPLES] != exact(state)[SAMPLES]


def test_a_sum_under_masks_is_aggregated_as_the_mean_that_it_is():
    strategy, state = server()
    state = after(strategy, state, FIRST)
    assert strategy.summands(state).keys() == {"base"}
    new = strategy.aggregate_sum(state, THIRD, update(2.5, 4.0, examples=2))
    assert exact(new) == exact(after(strategy, state, THIRD))


SMALL = {
    "strategy.synthetic_samples": 48,
    "strategy.synthetic_batch": 24,
    "strategy.warmup": 1,
    "strategy.generator_steps": 10,
    "strategy.generator_width": 8,
    "strategy.student_epochs": 2,
}


def run(folder, **values):
    given = {"strategy": "target", "rounds": 2, "scenario.split": "iid", **SMALL}
    given |= {"max_train_per_class": 40, "learning_rate": 0.003, "epochs": 2}
    given |= {"growing_head": True, "public_fraction": 0.0}
    return tiny(folder, **{**given, **values})


@pytest.mark.soak
@pytest.mark.run
def test_the_samples_travel_once_a_task_and_hold_forgetting_back(tmp_path):
    more = {"epochs": 8, "classes_per_task": 5}
    config = run(tmp_path / "with", **more)
    transport = run_in_process(config)
    run_in_process(run(tmp_path / "without", **more, **{"strategy.alpha": 0.0}))

    found, control = (summary_of(tmp_path / name) for name in ("with", "without"))
    assert found["client_accuracy"][0][0] == control["client_accuracy"][0][0]
    assert found["forgetting"] < control["forgetting"] - 0.2
    assert found["average_accuracy"] > control["average_accuracy"] + 0.05
    # 48 images of 8x8 bytes, 48 x 5 logits of four: once to each of two clients.
    nominal = 2 * (48 * 64 + 48 * 5 * 4)
    assert nominal < found["bytes_by_kind"]["down"]["memory"] < nominal + 4000
    assert "memory" not in found["bytes_by_kind"]["up"]
    for place in transport.places.values():
        kept = MemoryStateStore(place).load(before=99).state[SAMPLES]
        assert kept["x"].shape == (48, 1, 8, 8)
        plan = Built(resolve(config)).scenario
        assert kept["labels"].tolist() == list(plan.labels_until(0))


@pytest.mark.run
@pytest.mark.parametrize(
    "protection",
    [
        {"federation.secure_aggregation": True, "clients": 3},
        {"privacy.unit": "client", "privacy.noise_multiplier": 0.01, "tasks": 2},
    ],
    ids=["secure aggregation", "noise"],
)
def test_samples_are_made_of_a_protected_mean(tmp_path, protection):
    run_in_process(run(tmp_path, rounds=1, **protection))
    assert summary_of(tmp_path)["bytes_by_kind"]["down"]["memory"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))


@pytest.mark.run
def test_where_concepts_are_known_samples_are_made_after_every_round(tmp_path):
    given = {"scenario.name": "concepts", "scenario.reveal_ids": True, "rounds": 3}
    given |= {"classes_per_task": 0, "clients": 3}
    config = tiny(tmp_path, strategy="target", **SMALL, **given)
    strategy = Built(resolve(config)).strategy()
    assert strategy.context.classes.until == (tuple(range(10)),) * 2
    run_in_process(config)
    assert summary_of(tmp_path)["bytes_by_kind"]["down"]["memory"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))
