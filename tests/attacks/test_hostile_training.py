"""What an attacker makes of a round; its learner says only what it was given."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcl_flower.attacks import HostileTraining
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData

START = {"base": {"w": np.zeros(500, np.float32)}}
AFTER = {"heads/0": {"b": np.ones(2, np.float32)}}
STAGE = TaskStage(round=1, task=0, starts_task=True, ends_task=True)


class Honest:
    """Its change of the model is 1 in each entry."""

    def __init__(self, client):
        self.context = SimpleNamespace(client=client, seed=0)
        self.model = SimpleNamespace(state_dict=dict, shared_names=list)

    def train(self, state, received, stage, data):
        self.data = data
        return AFTER, Update({"base": {"w": np.ones(500, np.float32)}}, 7)


def trained(attack, client=0):
    examples = Examples(torch.zeros(3, 1), torch.tensor([0, 1, 3]))
    honest = Honest(client)
    hostile = HostileTraining(honest, attack, ())
    state, update = hostile({}, START, STAGE, TaskData(*[examples] * 3, 4))
    return honest, state, update


@pytest.mark.parametrize(
    "attack", ["sign-flip", "noise", "scaling", "label-flip", "counts", "adapters"]
)
def test_what_an_attacker_keeps_is_honest(attack):
    assert trained(attack)[1] is AFTER


def test_wrong_labels_decide_when_training_ends_too():
    honest, _, _ = trained("label-flip")

    assert honest.data.train.y.tolist() == honest.data.valid.y.tolist() == [3, 2, 0]
    assert honest.data.test.y.tolist() == [0, 1, 3]


def test_two_attackers_add_different_noise():
    one, other = (trained("noise", c)[2].payload["base"]["w"] for c in (0, 1))

    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2
