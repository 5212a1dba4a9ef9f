"""SS-IL: two softmaxes, distillation by task, and batches of one ratio."""

from inspect import getgeneratorlocals

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    SECOND,
    THIRD,
    check_loss,
    data,
    logits_of,
    model,
    moved,
    place,
    softmax,
    start,
)
from watched_fit import Watched

from clients.ss_il import SsIl
from fcl_flower.algorithms.base import Turn
from fcl_flower.algorithms.exemplars import random_orders
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.ss_il import SsIlParams

THIRD_TASK = TaskStage(round=4, task=2, starts_task=True, ends_task=False)


def learner(samples=8, where=None, **more):
    return SsIl(SsIlParams(memory_samples=samples, **more), model(), where or place())


def after_two_tasks(one):
    """Return the state of a client that has met the classes 0 to 3."""
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state, _ = one.train(Turn(state, start(), SECOND, data(1)))
    state, _ = one.train(Turn(state, start(), THIRD, data(1)))
    return state


def divergence(logits, targets, temperature):
    q, p = softmax(logits / temperature), softmax(targets / temperature)
    return temperature**2 * (p * (np.log(p) - np.log(q))).sum(1).mean()


# ---- the loss


@pytest.mark.parametrize("growing", [True, False])
def test_the_loss_of_a_third_task_and_its_gradient_by_numpy(growing):
    # A ratio of 1 and a memory of 8: four samples of it beside four new ones.
    params = {"replay_ratio": 1.0, "strength": 1.7, "temperature": 2.5}
    one = learner(8, place(learning_rate=1e-12), **params)
    watched = Watched(one)
    state = after_two_tasks(one)
    if growing:
        one.model.restrict_head(range(6))
    old_base = moved(start())["base"]
    one.train(Turn(state, {"base": old_base}, THIRD_TASK, data(2)))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    rows = torch.tensor([3, 0, 11, 7])
    new = data(2).train
    x, y = new.x[rows], new.y[rows]
    order = next(random_orders(**getgeneratorlocals(watched["orders"])))[:4]
    again_x, again_y = (state["memory"][name][order] for name in "xy")

    def by_hand(weight):
        base = {**now, "heads.0.weight": weight}
        z, z_again = logits_of(base, x), logits_of(base, again_x)
        total = -np.log(softmax(z[:, 4:]))[range(4), y.numpy() - 4].sum()
        total -= np.log(softmax(z_again[:, :4]))[range(4), again_y].sum()
        every = np.concatenate([z, z_again])
        taught = logits_of(old_base, np.concatenate([x, again_x]))
        by_task = [divergence(every[:, c], taught[:, c], 2.5) for c in ([0, 1], [2, 3])]
        return total / 8 + 1.7 * sum(by_task)

    check_loss(watched, x, y, rows, by_hand)


def test_the_first_task_has_a_softmax_over_its_own_classes():
    one = learner()
    _, update = one.train(Turn({}, start(), FIRST, data(0)))
    oracle, task = model(), data(0).train
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    logits = oracle(task.x, 0)[:, :2]
    torch.nn.functional.cross_entropy(logits, task.y).backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)


@pytest.mark.parametrize(("ratio", "drawn"), [(0.25, 5), (0.01, 1), (1.0, 8)])
def test_a_step_has_samples_of_the_memory_in_one_ratio_to_new_ones(ratio, drawn):
    one = learner(8, replay_ratio=ratio)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    sizes = []
    one.model.body.register_forward_hook(
        lambda _m, given, _o: sizes.append(len(given[0]))
    )
    _, update = one.train(Turn(state, start(), SECOND, data(1)))
    # The teacher's answers to both, the step's two parts, the validation samples.
    assert sizes == [20, 8, 20, drawn, 20]
    assert update.num_examples == 20


def test_the_draw_depends_on_client_and_round_alone():
    def update(client, number):
        one = learner(40, place(client, epochs=2, batch_size=4))
        watched = Watched(one)
        state, _ = one.train(Turn({}, start(), FIRST, data(0)))
        stage = TaskStage(number, 1, starts_task=True, ends_task=False)
        one.train(Turn(state, start(), stage, data(1)))
        return next(watched["orders"]).tolist()

    assert update(0, 2) == update(0, 2)
    assert len({str(update(c, r)) for c, r in ((0, 2), (1, 2), (0, 3))}) == 3


def test_without_a_memory_only_the_old_model_speaks_for_old_classes():
    one = learner(0, place(learning_rate=1e-12))
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    old_base = moved(start())["base"]
    one.train(Turn(state, {"base": old_base}, SECOND, data(1)))
    load(one.model, start()["base"])
    new = data(1).train
    found = watched.loss_of(new.x, new.y, torch.arange(20))
    z, taught = logits_of(start()["base"], new.x), logits_of(old_base, new.x)
    own = -np.log(softmax(z[:, 2:4]))[range(20), new.y.numpy() - 2].mean()
    expected = own + divergence(z[:, :2], taught[:, :2], 2.0)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


# ---- tasks


def test_a_class_belongs_to_the_task_in_which_it_was_first_met():
    one = learner()
    watched = Watched(one)
    state = after_two_tasks(one)
    assert state["memory/tasks"]["first"].tolist() == [0, 0, 1, 1, -1, -1]
    task = data(2)
    mixed = Examples(task.train.x, task.train.y - 1)  # classes 3 and 4
    after, _ = one.train(
        Turn(state, start(), FOURTH, TaskData(mixed, *task_rest(task)))
    )
    assert after["memory/tasks"]["first"].tolist() == [0, 0, 1, 1, 2, -1]
    assert [classes.tolist() for classes in watched["old_tasks"]] == [[0, 1], [2, 3]]
    assert watched["new"].tolist() == [3, 4]


def task_rest(task):
    return task.valid, task.test, task.classes


def test_a_growing_head_tells_of_classes_that_others_have_met():
    one = learner()
    one.model.restrict_head([0, 1, 2])
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    assert state["memory/tasks"]["first"].tolist() == [0, 0, 0, -1, -1, -1]


# ---- runs
