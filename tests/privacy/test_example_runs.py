"""Whole runs with examples as the privacy unit: who accounts, and what is refused."""

import contextlib
from functools import partial

import numpy as np
import pytest
from fakes import failure, run_in_process, summary_of, tiny
from torch import nn

from fcl_flower.algorithms import local_training
from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.config.run_config import PrivacySection, RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.models.build import from_module
from fcl_flower.models.registry import MODELS
from fcl_flower.privacy.accounting import sampled_epsilon
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.rounds import messages
from fcl_flower.rounds.client import model_bytes
from fcl_flower.setup.build import Built, validate
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation import in_process
from fcl_flower.training.private import charge

PRIVATE = {"unit": "example", "noise_multiplier": 1.5, "head": "single"}
BATCH = 20


def private(folder, strategy="fedavg", **changes):
    small = {"batch_size": BATCH, "max_train_per_class": 30, "max_test_per_class": 5}
    return tiny(folder, strategy=strategy, **{**PRIVATE, **small, **changes})


def expected(config, rounds=1):
    """Return epsilon by client after all tasks, from what the scenario shares out."""
    plan, found = Built(resolve(config)).scenario, {}
    for client, tasks in enumerate(plan.clients):
        steps = {}
        for task in tasks:
            q = min(1.0, BATCH / len(task.train))
            steps[q, 1.5] = steps.get((q, 1.5), 0) + rounds * int(np.ceil(1 / q))
        found[str(client)] = sampled_epsilon(steps, config.privacy.delta)
    return pytest.approx(found)


@pytest.mark.run
def test_each_client_says_what_its_examples_cost_and_nothing_else(tmp_path):
    told = []

    def keep(client, request, reply):
        if request.kind == "train":
            told.append(dict(reply.content.scalars[messages.METRICS]))
        return reply

    config = private(tmp_path, delta=1e-3)
    run_in_process(config, tamper=keep)

    found = summary_of(tmp_path)["privacy"]
    assert found["by_client"] == expected(config)
    assert found["epsilon"] == max(found["by_client"].values())
    assert found["epsilon"] == found["epsilon_clients"] == found["epsilon_server"]
    assert all(told_by.keys() == {"epsilon", "num-examples"} for told_by in told)
    assert "hides one example of a client" in (tmp_path / "report.html").read_text()


@pytest.mark.run
def test_fedprox_is_pulled_to_the_received_model_all_the_same(tmp_path):
    moved = {}

    def keep(client, request, reply):
        if request.kind == "train":
            start, end = (
                messages.decode_payload(m.content)["base"] for m in (request, reply)
            )
            squares = sum(float(np.square(end[k] - start[k]).sum()) for k in start)
            moved[mu] = moved.get(mu, 0) + squares
        return reply

    for mu in (0.0, 1e4):
        strategy = {"name": "fedprox", "mu": mu}
        config = private(tmp_path / f"{mu}", strategy, tasks=1, epochs=2)
        run_in_process(config, tamper=keep)
    assert moved[1e4] < 0.8 * moved[0.0]


@pytest.mark.run
def test_a_client_whose_budget_is_spent_trains_no_more(tmp_path):
    once = private(tmp_path / "once", tasks=1)
    run_in_process(once)
    spent = summary_of(tmp_path / "once")["privacy"]["epsilon"]
    config = private(tmp_path, rounds=2, tasks=1, epsilon=spent + 1e-6)
    with pytest.raises(RoundError, match=r"above privacy\.epsilon"):
        run_in_process(config)


@pytest.mark.run
@pytest.mark.parametrize("simulated", [True, False])
def test_a_round_that_is_asked_again_costs_again_outside_a_simulation(
    tmp_path, monkeypatch, simulated
):
    trained = []

    def lose(client, request, reply):
        if request.kind == "train":
            trained.append(client)
            if len(trained) == 1:
                return failure(request, "the connection was lost")
        return reply

    behaviour = {}
    if not simulated:
        behaviour["delay"] = lambda client: 0
        monkeypatch.setattr(in_process, "simulated", contextlib.nullcontext)
    given = {"tasks": 1, "min_updates": 2, "client_state": str(tmp_path / "states")}
    config = private(tmp_path / "run", **given)
    run_in_process(config, tamper=lose, **behaviour)

    found = summary_of(tmp_path / "run")["privacy"]["by_client"]
    wanted = expected(config, rounds=1 if simulated else 2).expected
    assert found["0"] == pytest.approx(wanted["0"])


@pytest.mark.run
def test_a_learner_that_keeps_only_its_own_groups_loses_no_account(
    tmp_path, monkeypatch
):
    train = local_training.LocalTraining.train

    def forgetful(self, turn):
        state, update = train(self, turn)
        own = {name: group for name, group in state.items() if name != "privacy"}
        return own, update

    monkeypatch.setattr(local_training.LocalTraining, "train", forgetful)
    config = private(tmp_path, rounds=2)
    run_in_process(config)
    assert summary_of(tmp_path)["privacy"]["by_client"] == expected(config, rounds=2)


@pytest.mark.run
def test_sampling_and_noise_are_secret_and_of_one_client_and_round(
    tmp_path, monkeypatch
):
    asked = []

    def secret(*key):
        asked.append(key)
        return secret_generator(*key)

    monkeypatch.setattr(local_training, "secret_generator", secret)
    run_in_process(private(tmp_path, rounds=2, tasks=1))
    assert sorted(asked) == sorted(
        (0, "examples", client, number) for client in (0, 1) for number in (1, 2)
    )


def test_what_examples_have_cost_is_no_part_of_what_a_method_stores():
    section = PrivacySection(unit="example", noise_multiplier=1.5)
    spent = charge({}, {(0.4, 2.0): 9}, section)
    assert model_bytes(ClientLearner, {"privacy": spent}, {}) == 0


def test_a_network_that_mixes_a_batch_is_refused():
    body = partial(nn.Sequential, nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))
    with MODELS.registered("mixing", from_module(body, (1, 8, 8))):
        config = private("", model="mixing", dataset="digits")
        with pytest.raises(ConfigError, match="model mixing, whose batch normalisatio"):
            validate(resolve(config))
        whole = config.replace(unit="client")
        validate(resolve(whole))  # of a client all examples are hidden together


@pytest.mark.parametrize("strategy", ["ewc", "fedweit", "replay", "replay-reg"])
def test_examples_that_are_used_otherwise_are_not_hidden(strategy):
    config = RunConfig.from_settings(strategy=strategy, dataset="digits", **PRIVATE)
    with pytest.raises(ConfigError, match=r"for .*, whose clients tell more than the"):
        validate(resolve(config))
