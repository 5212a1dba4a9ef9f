"""Single-task learning with several networks a task: a deep ensemble."""

import pytest
import torch
from fakes import exact
from torch import nn

from clients.stl import SingleTask
from fcl_flower.algorithms.base import ClientContext, Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from strategies.stl import StlParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
NEXT = TaskStage(round=3, task=1, starts_task=True, ends_task=True)
SEED = 4

pytestmark = pytest.mark.usefixtures("one_thread")


def learner(kind, params, seed=SEED):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3))
    model = MultiHeadModel(
        body, features=4, input_shape=(3,), tasks=2, classes=3, single_head=False
    )
    return kind(params, model, ClientContext(1, seed, Training(2, 5, 0.05)))


def examples(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, 3, generator=draw), torch.arange(count) % 3)


def task(seed):
    return TaskData(*(examples(20, seed + part) for part in range(3)), classes=3)


def test_each_is_a_network_of_its_own_and_the_mean_of_them_answers():
    ours = learner(SingleTask, StlParams(members=3))
    state = ours.init()
    seeds = [SEED, derive(SEED, "member", 1), derive(SEED, "member", 2)]
    ones = [learner(LocalTraining, Params(), seed) for seed in seeds]
    states, bodies = [{} for _ in ones], [{} for _ in ones]
    for stage, seed in ((FIRST, 1), (LAST, 1), (NEXT, 7)):
        state, _ = ours.train(Turn(state, {}, stage, task(seed)))
        for number, one in enumerate(ones):
            start = bodies[number].get(stage.task, {"base": state["base"]})
            states[number], sent = one.train(
                Turn(states[number], start, stage, task(seed))
            )
            bodies[number][stage.task] = {"base": sent.payload["base"]}

    x = examples(9, 3).x
    for number in (0, 1):
        each = [
            torch.softmax(one.predict(states[m], bodies[m][number], number, x), 1)
            for m, one in enumerate(ones)
        ]
        found = ours.predict(state, {}, number, x)
        torch.testing.assert_close(found.exp(), torch.stack(each).mean(0))
        assert not each[1].equal(each[0])
    for member, ending in enumerate(("", "/1", "/2")):
        kept = {"optimizer": state[f"optimizer{ending}"]}
        assert exact(kept) == exact({"optimizer": states[member]["optimizer"]})


def test_one_network_answers_with_its_own_logits():
    ours, plain = learner(SingleTask, StlParams()), learner(LocalTraining, Params())
    state, _ = ours.train(Turn(ours.init(), {}, FIRST, task(1)))
    heads, sent = plain.train(Turn({}, {"base": state["base"]}, FIRST, task(1)))
    x = examples(9, 3).x
    assert ours.predict(state, {}, 0, x).equal(plain.predict(heads, sent.payload, 0, x))
    assert state.keys() == {"base", "base/0", "heads", "optimizer"}
