"""Stable SGD, alone and with FedProx: the rate of each task against plain steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from lone_learner import data, gradients, model, place, shared, stage

from clients.fedprox_ssgd import FedProxSsgd
from clients.stable_sgd import StableSgd
from fcl_flower.algorithms.base import Turn
from fcl_flower.config.run_config import PrivacySection, RunConfig
from fcl_flower.models.registry import LeNetParams
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.setup.entries import Entries
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import load
from strategies.fedprox_ssgd import FedProxSsgdParams
from strategies.stable_sgd import StableSgdParams

RATES = [0.4, 0.2, 0.15]  # 0.4, 0.4 / 2, and the least, since 0.4 / 4 is below it
MU = 0.7


def stepped(network, received, velocities, task, rate, mu):
    """Take a step v <- 0.8 v + g, w <- w - rate v by hand."""

    def proximal(network):
        pairs = network.body.named_parameters()
        return sum(
            mu / 2 * (w - torch.from_numpy(received["base"][f"body.{n}"])).pow(2).sum()
            for n, w in pairs
        )

    found = gradients(network, data(task).train, task, extra=proximal)
    parameters = dict(network.named_parameters())
    for name, gradient in found.items():
        velocities[name] = 0.8 * velocities.get(name, 0.0) + gradient
        parameters[name].data -= rate * velocities[name]


@pytest.mark.parametrize("mu", [0.0, MU])
def test_each_task_has_its_rate_and_keeps_its_momentum_over_rounds(mu):
    where = place(momentum=0.8, learning_rate=0.4, epochs=2)
    known = {"gamma": 0.5, "minimum_rate": 0.15}
    if mu:
        learner = FedProxSsgd(FedProxSsgdParams(mu=mu, **known), model(), where)
    else:
        learner = StableSgd(StableSgdParams(**known), model(), where)
    oracle, state, received = model(), learner.init(), shared(model())

    for task, rate in enumerate(RATES):
        velocities = {}
        for number in range(2):
            load(oracle, received["base"])
            for _ in range(2):
                stepped(oracle, received, velocities, task, rate, mu)
            now = stage(1 + number, task, starts=number == 0, ends=number == 1)
            state, update = learner.train(Turn(state, received, now, data(task)))
            for name, value in update.payload["base"].items():
                expected = oracle.state_dict()[name]
                np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
            # The others move the model, so that the next round starts elsewhere.
            received = {"base": {n: v + 0.1 for n, v in update.payload["base"].items()}}
    np.testing.assert_allclose(
        state["heads"]["heads.2.bias"], oracle.heads[2].bias.detach(), rtol=1e-4
    )


def test_steps_that_hide_examples_have_the_rate_of_their_task():
    privacy = PrivacySection(unit="example", noise_multiplier=1.0, clip=1.0, delta=1e-5)
    where = replace(place(), privacy=privacy)

    def change(gamma):
        learner = StableSgd(StableSgdParams(gamma=gamma), model(), where)
        received = shared(model())
        with simulated():
            _, update = learner.train(Turn({}, received, stage(1, task=1), data()))
        return update.payload["base"]["body.0.bias"] - received["base"]["body.0.bias"]

    np.testing.assert_allclose(change(0.25), change(1.0) / 4, rtol=1e-4)


# ---- settings


def images(folder, **values):
    """Resolve a run whose images are those of a LeNet."""
    x, y = np.zeros((4, 32, 32, 3), np.uint8), np.array([0, 0, 1, 1])
    file = folder / "mine.npz"
    np.savez(file, x_train=x, x_test=x, y_train=y, y_test=y)
    given = {"dataset": "mine", "data_root": str(folder), **values}
    return resolve(RunConfig.from_settings(**given))


@pytest.mark.parametrize("name", ["stable-sgd", "fedprox-ssgd"])
def test_the_settings_are_those_of_the_authors_unless_others_are_given(tmp_path, name):
    run = images(tmp_path, strategy=name)

    training = run.config.training
    assert (training.optimizer, training.momentum) == ("sgd", 0.8)
    assert (training.batch_size, training.learning_rate) == (10, 0.01)
    assert training.lr_patience == 0
    assert Entries(run).model_params == LeNetParams(dropout=0.5)
    params = Entries(run).params
    assert (params.gamma, params.minimum_rate) == (0.8, 5e-5)
    assert resolve(run.config) == run
    own = {"learning_rate": 0.2, "model.dropout": 0.0, "model.width": 0.5}
    changed = images(tmp_path, strategy=name, **own)
    assert changed.config.training.learning_rate == 0.2
    assert Entries(changed).model_params == LeNetParams(width=0.5, dropout=0.0)


# ---- runs


def accuracies(folder, **values):
    run_in_process(tiny(folder, rounds=2, **values))
    return summary_of(folder)["client_accuracy"]


@pytest.mark.run
def test_with_one_rate_it_is_fedavg_by_sgd_and_with_a_falling_one_it_is_not(tmp_path):
    same = {"optimizer": "sgd", "momentum": 0.8, "batch_size": 10}
    plain = accuracies(
        tmp_path / "a", strategy="fedavg", learning_rate=0.01, lr_patience=0, **same
    )
    steady, falling = (
        accuracies(tmp_path / name, strategy={"name": "stable-sgd", "gamma": gamma})
        for name, gamma in (("b", 1.0), ("c", 0.01))
    )

    assert steady == plain
    assert falling != plain
    # The first task is at the full rate in any case.
    assert [rows[0] for rows in falling] == [rows[0] for rows in plain]
