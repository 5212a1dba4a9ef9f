"""What an attacker makes of a round; its learner says only what it was given."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcl_flower.attacks import HostileTraining
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData

SIZE = 2000
START = {"base": {"w": np.full(SIZE, 5, np.float32)}}
AFTER = {"heads/0": {"b": np.ones(2, np.float32)}}
SENT = {
    "base": {"w": np.full(SIZE, 7, np.float32)},
    "adapters": {"a": np.full(SIZE, 3, np.float32)},
    "seen": {"count": np.array([4.0])},
}


class Honest:
    def __init__(self, client):
        self.context = SimpleNamespace(client=client, seed=0)
        initial = {"w": torch.full((SIZE,), 6.0)}
        self.model = SimpleNamespace(
            state_dict=lambda: initial, shared_names=lambda: ["w"]
        )

    def train(self, turn):
        self.data = turn.data
        return AFTER, Update(SENT, 7)


def trained(attack, client=0, received=START, number=1):
    examples = Examples(torch.zeros(3, 1), torch.tensor([0, 1, 3]))
    honest = Honest(client)
    hostile = HostileTraining(honest, attack, ("adapters",))
    stage = TaskStage(round=number, task=0, starts_task=True, ends_task=True)
    state, update = hostile({}, received, stage, TaskData(*[examples] * 3, 4))
    assert state is AFTER
    return honest, update


@pytest.mark.parametrize(
    ("attack", "base", "examples"),
    [
        ("sign-flip", 3, 2**31),
        ("scaling", -15, 7),
        ("counts", 7, 2**31),
        ("label-flip", 7, 7),
    ],
)
def test_a_model_and_a_count_are_what_the_attack_makes_of_honest_ones(
    attack, base, examples
):
    _, update = trained(attack)

    assert update.num_examples == examples
    assert (update.payload["base"]["w"] == base).all()
    assert update.payload["adapters"] is SENT["adapters"]
    assert update.payload["seen"] is SENT["seen"]


@pytest.mark.parametrize(("attack", "hit"), [("noise", "base"), ("adapters",) * 2])
def test_noise_is_on_the_model_or_on_what_others_receive(attack, hit):
    _, update = trained(attack)

    assert {g for g in SENT if update.payload[g] is not SENT[g]} <= {hit}
    ((sent,), (honest,)) = update.payload[hit].values(), SENT[hit].values()
    assert abs((sent - honest).mean()) < 0.1
    assert abs((sent - honest).std() - 1) < 0.1


def test_noise_is_of_the_client_and_the_round_alone():
    one, again, other, later = (
        trained("noise", *given)[1].payload["base"]["w"]
        for given in ((0,), (0,), (1,), (0, START, 2))
    )
    assert np.array_equal(one, again)
    for drawn in (other, later):
        assert abs(np.corrcoef(one, drawn)[0, 1]) < 0.2


@pytest.mark.parametrize(
    ("received", "start"),
    [
        ({"base/0": {"w": np.full(SIZE, 8, np.float32)}, "base/1": START["base"]}, 8),
        ({}, 6),
    ],
    ids=["nearest", "initial"],
)
def test_the_change_is_from_the_nearest_model_or_the_initial_one(received, start):
    _, update = trained("sign-flip", received=received)
    assert (update.payload["base"]["w"] == 2 * start - 7).all()


def test_wrong_labels_decide_when_training_ends_too():
    honest, _ = trained("label-flip")

    assert honest.data.train.y.tolist() == honest.data.valid.y.tolist() == [3, 2, 0]
    assert honest.data.test.y.tolist() == [0, 1, 3]
