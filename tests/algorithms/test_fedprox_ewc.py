"""FedProx with EWC: two penalties that add up."""

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from lone_learner import data, gradients, model, place, shared, stage

from clients.ewc import Ewc
from clients.fedprox import FedProx
from clients.fedprox_ewc import FedProxEwc
from fcl_flower.algorithms.base import Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from strategies.ewc import EwcParams
from strategies.fedprox import FedProxParams
from strategies.fedprox_ewc import FedProxEwcParams

MU, STRENGTH = 0.5, 3.0
RATE = 0.1


def kept(received):
    """Return the state of a client that has learned a task, with numbers of our own."""
    rng = np.random.default_rng(3)
    tensors = received["base"].items()
    return {
        "fisher": {n: np.float32(rng.random(v.shape)) for n, v in tensors},
        "anchor": {n: np.float32(v + rng.normal(size=v.shape)) for n, v in tensors},
    }


def test_both_penalties_move_each_step():
    received = shared(model())
    state, examples = kept(received), data(1).train
    where = place(epochs=2, learning_rate=RATE)
    learner = FedProxEwc(FedProxEwcParams(mu=MU, strength=STRENGTH), model(), where)

    _, update = learner.train(Turn(state, received, stage(2, task=1), data(1)))

    network = model()
    for _ in range(2):
        found = gradients(network, examples, 1)
        for name, weight in network.named_parameters():
            if name not in found:
                continue
            step = found[name]
            if name.startswith("body"):
                global_weight = torch.from_numpy(received["base"][name])
                anchor = torch.from_numpy(state["anchor"][name])
                fisher = torch.from_numpy(state["fisher"][name])
                step = step + MU * (weight - global_weight)
                step = step + STRENGTH * fisher * (weight - anchor)
            weight.data -= RATE * step.detach()
    for name, value in update.payload["base"].items():
        np.testing.assert_allclose(value, network.state_dict()[name], rtol=2e-5)


def first_update(learner):
    received = shared(model())
    return learner.train(Turn(kept(received), received, stage(2, task=1), data(1)))


@pytest.mark.parametrize(
    ("off", "plain"),
    [
        ({"mu": 0.0}, Ewc(EwcParams(strength=STRENGTH), model(), place(epochs=2))),
        ({"strength": 0.0}, FedProx(FedProxParams(mu=MU), model(), place(epochs=2))),
        (
            {"mu": 0.0, "strength": 0.0},
            LocalTraining(Params(), model(), place(epochs=2)),
        ),
    ],
    ids=["ewc", "fedprox", "fedavg"],
)
def test_without_one_of_them_it_is_the_other(off, plain):
    params = FedProxEwcParams(**{"mu": MU, "strength": STRENGTH, **off})
    _, found = first_update(FedProxEwc(params, model(), place(epochs=2)))
    _, expected = first_update(plain)
    for name, value in expected.payload["base"].items():
        np.testing.assert_array_equal(found.payload["base"][name], value)


def test_the_parameters_are_those_of_both():
    entry = algorithm("fedprox-ewc")
    assert entry.params({}).model_dump() == {
        **FedProxParams().model_dump(),
        **EwcParams().model_dump(),
    }
    for key in ("mu", "strength"):
        with pytest.raises(ConfigError, match=rf"strategy\.{key}: got -0\.1, expected"):
            entry.params({key: -0.1})


@pytest.mark.soak
@pytest.mark.run
def test_a_run_feels_both_penalties(tmp_path):
    def scores(**strategy):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        run_in_process(tiny(folder, strategy=strategy, rounds=2))
        return summary_of(folder)["client_accuracy"]

    plain = scores(name="fedavg")
    few = {"name": "fedprox-ewc", "fisher_examples": 10}
    assert scores(**few, mu=0.0, strength=0.0) == plain
    assert scores(**few, mu=5.0, strength=0.0) != plain
    assert scores(**few, mu=0.0, strength=1e4) != plain
