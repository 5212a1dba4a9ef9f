"""FedAvg with fine-tuning: a client predicts with what its own samples make of it."""

import numpy as np
import pytest
import torch
from fakes import exact, run_in_process, summary_of, tiny
from torch.nn.functional import cross_entropy

from clients.fedavg_ft import FedAvgFineTuned
from fcl_flower.algorithms.base import ClientContext, Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.fedavg_ft import FedAvgFtParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=True)
CONCEPTS = {
    "dataset": "digits,relabelled-3:digits",
    "model": "small",
    "scenario": "concepts",
    "scenario.merge_labels": "digits=relabelled-3:digits",
    "scenario.window": 64,
    "classes_per_task": 0,
    "rounds": 3,
    "lr_patience": 0,
}


def learner(kind=FedAvgFineTuned, *, single=False, hidden=False, **params):
    network = create_model(
        "small", tasks=1 if hidden else 2, classes=3, single_head=single, seed=0
    )
    place = ClientContext(1, 4, Training(1, 5, 1e-2), hidden_tasks=hidden)
    chosen = FedAvgFtParams(**params) if kind is FedAvgFineTuned else Params()
    return kind(chosen, network, place)


def examples(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, generator=draw)
    return Examples(x, torch.arange(count) % 3)


def task(seed):
    return TaskData(*(examples(12, seed + part) for part in range(3)), classes=3)


def base_of(one):
    return {"base": snapshot(one.model, one.model.shared_names())}


@pytest.mark.parametrize("single", [False, True])
def test_the_update_is_that_of_fedavg(single):
    ours, plain = (
        learner(kind, single=single) for kind in (FedAvgFineTuned, LocalTraining)
    )
    start = base_of(ours)
    _, sent = ours.train(Turn({}, start, FIRST, task(1)))
    _, expected = plain.train(Turn({}, start, FIRST, task(1)))
    assert exact(sent.payload) == exact(expected.payload)


def test_a_task_is_answered_by_the_network_that_its_training_ended_with():
    one = learner()
    state, first = one.train(Turn({}, base_of(one), FIRST, task(1)))
    mean = {k: v + 0.1 for k, v in first.payload["base"].items()}
    state, second = one.train(Turn(state, {"base": mean}, SECOND, task(7)))
    x = examples(6, seed=9).x
    zeros = {"base": {k: np.zeros_like(v) for k, v in mean.items()}}

    for number, update in enumerate((first, second)):
        found = one.predict(state, zeros, number, x)
        load(one.model, update.payload["base"])
        load(one.model, state["heads"])
        one.model.eval()
        torch.testing.assert_close(found, one.model(x, number), rtol=0, atol=0)


def test_a_task_without_training_is_answered_by_what_is_received():
    one = learner()
    received = base_of(one)
    found = one.predict({}, received, 1, examples(6).x)
    expected = learner(LocalTraining).predict({}, received, 1, examples(6).x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_where_concepts_are_hidden_nothing_tuned_is_kept():
    one = learner(single=True, hidden=True)
    state, _ = one.train(Turn({}, base_of(one), FIRST, task(1)))
    assert not [group for group in state if group.startswith("tuned")]


def test_recent_samples_tune_the_received_model_for_one_evaluation():
    """All samples in one batch: an epoch is a step of Adam, in whatever order."""
    one = learner(single=True, hidden=True, tuning_epochs=3)
    received = base_of(one)
    recent = examples(5, seed=3)
    found = one.select_model({}, received, recent)

    oracle = learner(single=True, hidden=True).model
    load(oracle, received["base"])
    optimizer = torch.optim.Adam(oracle.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        oracle.train()
        cross_entropy(oracle(recent.x, 0), recent.y).backward()
        optimizer.step()
    assert found.keys() == {"base"}
    for name, value in found["base"].items():
        np.testing.assert_allclose(value, oracle.state_dict()[name], atol=1e-6)
    assert exact(received) == exact(base_of(learner(single=True, hidden=True)))


def test_no_more_than_the_subset_is_tuned_on():
    few = learner(single=True, hidden=True, subset=4)
    received, recent = base_of(few), examples(30, seed=3)
    one = exact(few.select_model({}, received, recent))
    assert one == exact(few.select_model({}, received, recent))
    whole = learner(single=True, hidden=True, subset=30)
    assert one != exact(whole.select_model({}, received, recent))
    enough = learner(single=True, hidden=True, subset=500)
    assert exact(enough.select_model({}, received, recent)) == exact(
        whole.select_model({}, received, recent)
    )


class Frozen(torch.nn.Module):
    """A body that is never trained, and counts what it computes from inputs."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def frozen_features(self, x):
        self.seen += len(x)
        return x.flatten(1)[:, :4] * 2

    def forward(self, x):
        return x if x.ndim == 2 else self.frozen_features(x)


def test_a_frozen_body_sees_the_recent_samples_once():
    body = Frozen()
    network = MultiHeadModel(
        body, features=4, input_shape=(1, 8, 8), tasks=1, classes=3, single_head=True
    )
    place = ClientContext(1, 4, Training(1, 50, 1e-2), hidden_tasks=True)
    one = FedAvgFineTuned(FedAvgFtParams(tuning_epochs=4), network, place)
    received, recent = base_of(one), examples(20, seed=5)

    found = one.select_model({}, received, recent)

    # With the one that the cache looks at, to know whether it has them.
    assert body.seen == 20 + 1
    head = network.heads[0]
    load(network, received["base"])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        cross_entropy(head(recent.x.flatten(1)[:, :4] * 2), recent.y).backward()
        optimizer.step()
    for name, value in found["base"].items():
        np.testing.assert_allclose(value, network.state_dict()[name], atol=1e-6)


@pytest.mark.soak
@pytest.mark.run
def test_tuning_tells_what_no_label_does(tmp_path):
    """The same images have other labels in each concept: one network cannot know."""
    found = {}
    for name in ("fedavg", "fedavg-ft"):
        folder = tmp_path / name
        run_in_process(tiny(folder, strategy=name, **CONCEPTS))
        found[name] = summary_of(folder)
    assert found["fedavg-ft"]["average_accuracy"] > found["fedavg"]["average_accuracy"]
    sent = {name: one["bytes_up"] for name, one in found.items()}
    assert sent["fedavg"] == sent["fedavg-ft"]
