"""Replay, with and without regularization: what is trained on, and what is kept."""

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from torch import nn

from clients.replay import Replay
from fcl_flower.algorithms.base import ClientContext, Params
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData, concat
from fcl_flower.federation.client import model_bytes
from fcl_flower.federation.codec import encode
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.distillation import hidden_features
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot
from strategies.replay import ReplayParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
SECOND = TaskStage(round=2, task=1, starts_task=True, ends_task=False)
THIRD = TaskStage(round=3, task=1, starts_task=False, ends_task=True)


def model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    return MultiHeadModel(
        body, features=4, input_shape=(3,), tasks=1, classes=4, single_head=True
    )


def place(**training):
    chosen = {"epochs": 1, "batch_size": 100, "learning_rate": 0.01} | training
    return ClientContext(client=0, seed=0, training=Training(**chosen))


def data(task, count=20):
    draw = torch.Generator().manual_seed(task)
    splits = [torch.randn(count, 3, generator=draw) for _ in range(3)]
    parts = (Examples(x, (x[:, 0] > 0).long() + 2 * task) for x in splits)
    return TaskData(*parts, classes=4)


def start():
    network = model()
    return {"base": snapshot(network, network.shared_names())}


def moved(received):
    return {"base": {name: values + 0.1 for name, values in received["base"].items()}}


def plain_adam(received, examples, penalty=lambda network: 0.0):
    """Return the model after one step on all examples, by torch alone."""
    network = model()
    load(network, received["base"])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss = nn.functional.cross_entropy(network(examples.x, 0), examples.y)
    (loss + penalty(network)).backward()
    optimizer.step()
    return network.state_dict()


def joined(*parts):
    return Examples(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def kept_of_first_task(memory):
    old = memory["task"] == 0
    return Examples(
        torch.from_numpy(memory["x"][old]), torch.from_numpy(memory["y"][old]).long()
    )


# ---------------------------------------------------------------- replay


def test_the_first_task_is_plain_training():
    learner, plain = (
        Replay(ReplayParams(), model(), place()),
        LocalTraining(Params(), model(), place()),
    )
    state, update = learner.train({}, start(), FIRST, data(0))
    _, expected = plain.train({}, start(), FIRST, data(0))
    for name, values in expected.payload["base"].items():
        np.testing.assert_array_equal(update.payload["base"][name], values)
    assert update.num_examples == 20
    # 3 % of 20 is less than one sample of each of the two classes.
    assert sorted(state["memory"]["y"].tolist()) == [0, 1]


def test_a_later_task_is_trained_on_together_with_what_is_remembered():
    learner = Replay(ReplayParams(buffer_fraction=0.2), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    old = kept_of_first_task(state["memory"])
    received = moved(start())

    after, update = learner.train(state, received, SECOND, data(1))

    expected = plain_adam(received, joined(data(1).train, old))
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    assert update.num_examples == 24
    assert after["memory"]["task"].tolist() == [0] * 4 + [1] * 4


def test_a_task_is_not_joined_with_its_own_samples_in_later_rounds():
    learner = Replay(ReplayParams(buffer_fraction=0.2), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    state, _ = learner.train(state, start(), SECOND, data(1))
    after, update = learner.train(state, start(), THIRD, data(1))
    assert update.num_examples == 24
    assert after["memory"] is state["memory"]


def test_a_client_that_lost_its_memory_begins_anew_within_a_task():
    learner = Replay(ReplayParams(buffer_fraction=0.2), model(), place())
    state, update = learner.train(learner.init(), start(), THIRD, data(1))
    assert update.num_examples == 20
    assert state["memory"]["task"].tolist() == [1] * 4


@pytest.mark.parametrize("policy", ["balanced", "herding", "reservoir", "leverage"])
def test_with_a_fixed_budget_old_samples_make_room(policy):
    params = ReplayParams(budget="fixed", memory_samples=6, memory_policy=policy)
    learner = Replay(params, model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    assert len(state["memory"]["y"]) == 6
    during, update = learner.train(state, start(), SECOND, data(1))
    assert update.num_examples == 26
    assert during["memory"] is state["memory"]
    after, update = learner.train(during, start(), THIRD, data(1))
    assert update.num_examples == 26
    assert len(after["memory"]["y"]) == 6
    assert set(after["memory"]["task"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    "kept", [{"buffer_fraction": 0.2}, {"budget": "fixed", "memory_samples": 4}]
)
def test_clients_draw_their_samples_by_themselves(kept):
    drawn = []
    for client in (0, 1):
        where = ClientContext(client=client, seed=0, training=place().training)
        learner = Replay(ReplayParams(**kept), model(), where)
        state, _ = learner.train({}, start(), FIRST, data(0))
        drawn.append(state["memory"]["x"].tolist())
    assert drawn[0] != drawn[1]


def test_what_is_remembered_is_among_what_a_client_stores():
    learner = Replay(ReplayParams(), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    more = model_bytes(learner, state, start()) - model_bytes(learner, {}, start())
    stored = sum(len(encode(values).data) for values in state["memory"].values())
    assert more == stored > 0


# ---------------------------------------------------------------- regularization


def test_the_hidden_states_are_held_near_those_of_the_received_model():
    learner = Replay(ReplayParams(buffer_fraction=0.2, strength=3.0), model(), place())
    state, _ = learner.train({}, start(), FIRST, data(0))
    received = moved(start())
    learner.train(state, received, SECOND, data(1))
    load(learner.model, received["base"])
    with torch.no_grad():
        learner.model.body[0].bias.add_(0.5)
    rows = torch.tensor([1, 21])  # one of the task, and one that is remembered
    x = torch.stack(
        [data(1).train.x[1], torch.from_numpy(state["memory"]["x"][1])]
    ).double()

    found = learner.penalty(rows, learner.model.body(x.float()))
    (gradient,) = torch.autograd.grad(found, [learner.model.body[0].weight])
    weight, bias = (
        received["base"][f"body.0.{n}"].astype(np.float64) for n in ("weight", "bias")
    )

    def by_hand(new_weight, new_bias):
        new, old = (
            np.tanh(x.numpy() @ w.T + b)
            for w, b in ((new_weight, new_bias), (weight, bias))
        )
        return 3.0 * np.sum((new - old) ** 2) / 8  # two samples of four features

    assert float(found.detach()) == pytest.approx(by_hand(weight, bias + 0.5), rel=1e-5)
    for entry in np.ndindex(4, 3):
        step = np.zeros((4, 3))
        step[entry] = 1e-5
        slope = by_hand(weight + step, bias + 0.5) - by_hand(weight - step, bias + 0.5)
        assert float(gradient[entry]) == pytest.approx(slope / 2e-5, abs=1e-5)


def test_the_penalty_takes_part_in_training():
    # Several steps: in the first one the model is still the received one.
    given = {"epochs": 6, "learning_rate": 0.05}

    def distance(strength):
        params = ReplayParams(buffer_fraction=0.2, strength=strength)
        learner = Replay(params, model(), place(**given))
        state, _ = learner.train({}, start(), FIRST, data(0))
        received = moved(start())
        learner.train(state, received, SECOND, data(1))
        after = hidden_features(learner.model, data(1).train)
        load(learner.model, received["base"])
        return float(
            (after - hidden_features(learner.model, data(1).train)).square().mean()
        )

    assert distance(100.0) < 0.2 * distance(0.0)


def test_without_strength_it_is_training_on_the_task_and_the_buffer():
    given = {"epochs": 3, "batch_size": 7}
    params = ReplayParams(buffer_fraction=0.2, strength=0.0)
    learner = Replay(params, model(), place(**given))
    state, _ = learner.train({}, start(), FIRST, data(0))
    _, found = learner.train(state, start(), SECOND, data(1))
    kept = (torch.from_numpy(state["memory"][name]) for name in "xy")
    task = data(1)
    both = concat([task.train, Examples(*kept)])
    seen = TaskData(Examples(both.x, both.y.long()), task.valid, task.test, 4)
    plain = LocalTraining(Params(), model(), place(**given))
    _, expected = plain.train({}, start(), SECOND, seen)
    for name, values in expected.payload["base"].items():
        np.testing.assert_array_equal(found.payload["base"][name], values)
    assert found.num_examples == expected.num_examples == 24


def test_replay_reg_is_replay_with_a_strength_above_0():
    assert algorithm("replay").params({}).strength == 0
    assert algorithm("replay-reg").params({}).strength == 1
    sides = {algorithm(name).client for name in ("replay", "replay-reg")}
    assert sides == {"clients.replay:Replay"}


def test_nothing_is_held_back_in_the_first_task():
    given = {"epochs": 3}
    held = Replay(ReplayParams(strength=1e3), model(), place(**given))
    plain = LocalTraining(Params(), model(), place(**given))
    _, found = held.train({}, start(), FIRST, data(0))
    _, expected = plain.train({}, start(), FIRST, data(0))
    for name, values in expected.payload["base"].items():
        np.testing.assert_array_equal(found.payload["base"][name], values)


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("name", ["replay", "replay-reg", "mtl"])
def test_a_head_for_each_task_is_refused(tmp_path, name):
    config = tiny(
        tmp_path, strategy=name, dataset="digits", scenario="classes", head="multi"
    )
    with pytest.raises(
        ConfigError, match=f"model.head: got 'multi', expected 'single' for {name}"
    ):
        build.validate(resolve(config))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("replay", "scenario.name: got 'concepts', expected one whose tasks"),
        ("replay-reg", "scenario.name: got 'concepts', expected one whose tasks"),
        ("mtl", "scenario.joint: got True, expected false for scenario concepts"),
    ],
)
def test_tasks_without_identities_are_refused(tmp_path, name, sentence):
    config = tiny(
        tmp_path,
        strategy=name,
        dataset="digits",
        scenario="concepts",
        classes_per_task=0,
    )
    with pytest.raises(ConfigError, match=sentence):
        build.validate(resolve(config))


def test_concepts_with_identities_can_be_replayed(tmp_path):
    config = tiny(
        tmp_path,
        strategy="replay",
        dataset="digits",
        scenario="concepts",
        classes_per_task=0,
        **{"scenario.reveal_ids": True},
    )
    run = resolve(config)
    build.validate(run)
    assert run.config.model.head == "single"


def first_task_at_the_end(folder, strategy):
    config = tiny(
        folder,
        strategy=strategy,
        dataset="digits",
        scenario="classes",
        head="single",
        rounds=4,
        epochs=5,
        learning_rate=3e-3,
        seed=1,  # with which both clients learn in the same order
        **{
            "strategy.params": "" if strategy == "finetune" else "buffer_fraction = 0.1"
        },
    )
    plan = build.build_scenario(resolve(config))
    assert len({tuple(task.classes for task in tasks) for tasks in plan.clients}) == 1
    run_in_process(config)
    found = summary_of(folder)["client_accuracy"]
    learned = np.mean([matrix[0][0] for matrix in found])
    return learned, np.mean([matrix[1][0] for matrix in found])


def test_replay_forgets_far_less_than_training_on_new_classes_alone(tmp_path):
    found = {
        name: first_task_at_the_end(tmp_path / name, name)
        for name in ("finetune", "replay", "replay-reg")
    }
    assert all(learned > 0.9 for learned, _ in found.values())
    assert found["finetune"][1] < 0.1
    assert found["replay"][1] > 0.5
    assert found["replay-reg"][1] > 0.5


def test_fine_tuning_is_fedavg(tmp_path):
    found = []
    for name in ("finetune", "fedavg"):
        folder = tmp_path / name
        run_in_process(
            tiny(
                folder,
                strategy=name,
                dataset="digits",
                scenario="classes",
                head="single",
                rounds=2,
            )
        )
        found.append(summary_of(folder)["client_accuracy"])
    assert found[0] == found[1]
