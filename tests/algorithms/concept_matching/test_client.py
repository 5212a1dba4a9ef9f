"""Concept Matching, client half: the model with the lowest loss, and nothing said."""

import numpy as np
import pytest
import torch
from fakes import exact, run_in_process, summary_of, tiny

from clients.concept_matching.client import ConceptMatching
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.registry import create_model
from fcl_flower.setup import factory
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.concept_matching import ConceptMatchingParams

NOW = TaskStage(round=1, task=0, starts_task=True, ends_task=True)


def learner(subset=64, client=0, **model):
    network = create_model(
        "small", **{"tasks": 1, "classes": 3, "single_head": True, "seed": 0, **model}
    )
    place = ClientContext(client, 0, Training(1, 5, 1e-3))
    return ConceptMatching(ConceptMatchingParams(subset=subset), network, place)


def expert(one, label):
    """Return the initial model with a head that always answers ``label``."""
    arrays = snapshot(one.model, one.model.shared_names())
    arrays["heads.0.weight"] = np.zeros_like(arrays["heads.0.weight"])
    arrays["heads.0.bias"] = np.eye(3, dtype=np.float32)[label] * 5
    return arrays


def examples(*labels, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 1, 8, 8, generator=draw)
    return Examples(x, torch.tensor(labels))


def task(*labels):
    return TaskData(*(examples(*labels, seed=seed) for seed in range(3)), classes=3)


@pytest.fixture
def one():
    return learner()


@pytest.fixture
def received(one):
    return {f"base/{k}": expert(one, label) for k, label in enumerate((2, 0, 1))}


@pytest.mark.parametrize(("label", "model"), [(2, 0), (0, 1), (1, 2)])
def test_the_model_with_the_lowest_loss_is_chosen(one, received, label, model):
    assert one.match({}, received, examples(label, label, label), 0) == model


def test_the_mean_over_the_examples_decides(one, received):
    assert one.match({}, received, examples(0, 1, 1, 1, 2), 0) == 2


def test_of_equal_models_the_first_is_chosen(one, received):
    same = dict.fromkeys(("base/0", "base/1"), received["base/1"])
    assert one.match({}, same, examples(0, 0), 0) == 0


def test_the_chosen_model_is_trained_and_nothing_tells_which_it_was(one, received):
    state, update = one.train({}, received, NOW, task(1, 1, 1, 1, 1, 0))
    assert update.payload.keys() == {"base"}
    assert update.payload["base"].keys() == received["base/0"].keys()
    moved = {
        k: max(
            float(np.abs(np.asarray(new) - received[f"base/{k}"][name]).max())
            for name, new in update.payload["base"].items()
        )
        for k in range(3)
    }
    assert 0 < moved[2] < 0.01  # two steps of at most 1e-3
    assert min(moved[0], moved[1]) > 1
    assert update.metrics.keys() == {"loss", "valid_loss", "valid_accuracy"}
    assert int(state["chosen"]["0"]) == 2


def test_only_a_part_of_the_examples_is_looked_at(one, received):
    many = examples(*[0] * 30, *[1] * 30)
    seen = []
    forward = one.model.forward
    one.model.forward = lambda x, task: seen.append(len(x)) or forward(x, task)
    one.match({}, received, many, 0)
    assert seen == [60] * 3
    few = learner(subset=7)
    forward = few.model.forward
    few.model.forward = lambda x, task: seen.append(x) or forward(x, task)
    few.match({}, received, many, 0)
    assert [len(x) for x in seen[3:]] == [7] * 3
    assert all(torch.equal(x, seen[3]) for x in seen[4:])
    # At random, not the first ones, since examples may be sorted by class.
    assert not torch.equal(seen[3], many.x[:7])


def test_data_that_are_met_without_a_task_choose_by_themselves(one, received):
    found = one.select_model({}, received, examples(1, 1))
    assert exact(found) == exact({"base": received["base/2"]})
    logits = one.predict({}, found, 0, examples(0).x)
    assert logits.argmax(1).tolist() == [1]


def test_a_task_that_the_client_knows_of_keeps_its_model(one, received):
    state = {"chosen": {"0": np.asarray(1), "3": np.asarray(0)}}
    x = examples(0).x
    assert one.predict(state, received, 0, x).argmax(1).tolist() == [0]
    assert one.predict(state, received, 3, x).argmax(1).tolist() == [2]


def test_private_heads_take_part_in_the_choice():
    one = learner(single_head=False, tasks=2, classes=2)
    body = snapshot(one.model, one.model.shared_names())
    flipped = {name: -np.asarray(values) for name, values in body.items()}
    data = TaskData(examples(0, 1), examples(0, seed=1), examples(0, seed=2), 2)
    received = {"base/0": body, "base/1": flipped}
    state, _ = one.train({}, received, NOW, data)
    assert state["heads"].keys() == {"heads.0.weight", "heads.0.bias"}
    x, y = examples(0, 1, 1, 0)
    logits = [one.predict(state, {"base": received[f"base/{k}"]}, 0, x) for k in (0, 1)]
    entropy = torch.nn.functional.cross_entropy
    losses = [float(entropy(z.detach(), y)) for z in logits]
    assert one.match(state, received, Examples(x, y), 0) == int(np.argmin(losses))


def test_the_server_guesses_rightly_with_which_model_a_client_started(
    tmp_path, monkeypatch
):
    chosen = {}
    match = ConceptMatching.match

    def noted(self, state, received, found, task):
        chosen[self.context.client] = match(self, state, received, found, task)
        return chosen[self.context.client]

    monkeypatch.setattr(ConceptMatching, "match", noted)
    strategy = factory.build_strategy
    guesses = []

    def watched(config):
        inner = strategy(config)
        aggregate_train = inner.aggregate_train

        def compared(state, stage, updates):
            new = aggregate_train(state, stage, updates)
            told = new["meta/round"]
            pairs = zip(told["client"], told["origin"], strict=True)
            guesses.extend((chosen[int(c)], int(k)) for c, k in pairs)
            return new

        inner.aggregate_train = compared
        return inner

    monkeypatch.setattr(factory, "build_strategy", watched)
    run_in_process(
        tiny(
            tmp_path,
            strategy="concept-matching",
            scenario="concepts",
            classes_per_task=0,
            tasks=3,
            clients=6,
            rounds=5,
        )
    )
    assert len(guesses) == 30
    assert all(true == guess for true, guess in guesses)
    assert len({true for true, _ in guesses}) > 1
    assert summary_of(tmp_path)["concepts"]["models"] > 1
