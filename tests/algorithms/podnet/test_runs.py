"""Whole runs of PODNet on digits: what it gains, and what it refuses."""

import numpy as np
import pytest
from fakes import exact, failure, rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import Update
from fcl_flower.federation.messages import decode_request
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot


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


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    def config(folder, **more):
        return small(folder, **{"tasks": 2, "rounds": 2, "epochs": 1}, **more)

    # In the second round of the second task, when there is a teacher.
    check_resumed(tmp_path, config, 4)


def test_a_client_that_misses_the_end_of_a_task_goes_on(tmp_path):
    def absent(client, message, reply):
        train = message.metadata.message_type == "train"
        late = train and decode_request(message.content).stage.round == 2
        return failure(message, "absent") if client and late else reply

    run_in_process(small(tmp_path, tasks=2, rounds=2, epochs=1), tamper=absent)
    failed = [bool(row["failed"]) for row in rounds_of(tmp_path)]
    assert failed == [False, True, False, False]


def test_alone_a_client_has_the_same_heads_and_sends_none(tmp_path):
    config = small(tmp_path, tasks=2, rounds=2, local_only=True)
    run_in_process(config)
    found = summary_of(tmp_path)
    assert found["average_accuracy"] > 0.9
    assert found["bytes_by_kind"]["up"].keys() == {"meta"}


def server_and_model(folder):
    run = resolve(small(folder))
    plan = build.build_scenario(run)
    model = build.build_model(run, plan)
    strategy = build.build_strategy(run)
    return strategy, strategy.init(snapshot(model, model.shared_names()))


def test_proxies_travel_and_are_averaged(tmp_path):
    strategy, state = server_and_model(tmp_path)
    assert state["base"]["heads.0.proxies"].shape == (8, 10, 64)
    assert state["base"]["heads.0.scale"].tolist() == [10.0]
    assert "heads.0.weight" not in state["base"]
    sent = {
        client: {name: values + client for name, values in state["base"].items()}
        for client in (1, 4)
    }
    updates = {
        client: Update({"base": base}, num_examples=client)
        for client, base in sent.items()
    }
    new = strategy.aggregate_train(state, None, updates)
    # (1 * 1 + 4 * 4) / 5
    for name, values in new["base"].items():
        np.testing.assert_allclose(values, state["base"][name] + 3.4, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heads.0.proxies", np.zeros((8, 9, 64), np.float32)),
        ("heads.0.proxies", np.zeros((8, 10, 64), np.float64)),
        ("heads.0.scale", np.zeros((), np.float32)),
        ("heads.0.weight", np.zeros((8, 64), np.float32)),
    ],
)
def test_heads_of_another_form_are_refused(tmp_path, name, value):
    strategy, state = server_and_model(tmp_path)
    strategy.check_update(state, Update(state, num_examples=1))
    before = exact(state)
    forged = {"base": {**state["base"], name: value}}
    with pytest.raises(WireError, match=r"heads\.0\."):
        strategy.check_update(state, Update(forged, num_examples=1))
    less = {n: v for n, v in state["base"].items() if n != "heads.0.scale"}
    with pytest.raises(WireError, match=r"heads\.0\.scale"):
        strategy.check_update(state, Update({"base": less}, num_examples=1))
    assert exact(state) == before


def test_a_head_for_each_task_is_refused(tmp_path):
    config = tiny(tmp_path, strategy="podnet", scenario="classes", head="multi")
    with pytest.raises(
        ConfigError, match=r"model\.head: got 'multi', expected 'single' for podnet"
    ):
        build.validate(resolve(config))


def test_settings_reach_the_network(tmp_path):
    run = resolve(small(tmp_path, **{"strategy.proxies": 3, "strategy.scale": 2.5}))
    model = build.build_model(run, build.build_scenario(run))
    assert model.heads[0].proxies.shape == (8, 3, 64)
    assert model.heads[0].scale.tolist() == [2.5]


def test_unless_told_otherwise_it_keeps_samples_by_herding():
    assert algorithm("podnet").params({}).memory_policy == "herding"
    chosen = algorithm("podnet").params({"memory_policy": "balanced"})
    assert chosen.memory_policy == "balanced"
