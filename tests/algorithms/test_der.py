"""DER++: the loss of stored samples and logits, and what is stored when."""

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
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

from clients.der import Der, logit_error
from fcl_flower.algorithms.base import Params, Turn
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import CLOSED
from fcl_flower.privacy.mechanism import simulated
from fcl_flower.training.tensors import load
from strategies.der import DerParams


def learner(samples=8, where=None, **more):
    params = DerParams(memory_samples=samples, **more)
    return Der(params, model(), where or place())


def entropy(z, y):
    return -np.log(softmax(z)[np.arange(len(y)), y]).mean()


# ---- the loss


@pytest.mark.parametrize("growing", [True, False])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(growing):
    # So many a step that both terms are over all that is stored.
    one = learner(alpha=0.7, beta=0.4, where=place(learning_rate=1e-12))
    watched = Watched(one)
    if growing:
        one.model.restrict_head([0, 1])
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    if growing:
        one.model.restrict_head([0, 1, 2, 3])
    one.train(Turn(state, moved(start()), SECOND, data(1)))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    batch = data(1).train
    rows = torch.arange(20)

    x, y = state["memory"]["x"], state["memory"]["y"]
    stored = state["memory"]["logits"].astype(np.float64)

    def by_hand(weight):
        base = {**now, "heads.0.weight": weight}
        new, old = logits_of(base, batch.x.numpy()), logits_of(base, x)
        open_now, open_then = (4, 2) if growing else (6, 6)
        error = np.square(old - stored)[:, :open_then].mean()
        again = entropy(old[:, :open_now], y)
        return entropy(new[:, :open_now], batch.y.numpy()) + 0.7 * error + 0.4 * again

    check_loss(watched, batch.x, batch.y, rows, by_hand)


def test_an_old_logit_that_there_was_not_says_nothing():
    stored = torch.tensor([[1.0, CLOSED, 3.0], [CLOSED, CLOSED, -1.0]])
    logits = torch.tensor([[2.0, 7.0, 3.0], [5.0, 7.0, 1.0]], requires_grad=True)
    found = logit_error(logits, stored)
    found.backward()
    assert float(found.detach()) == pytest.approx((1 + 0 + 4) / 3)
    np.testing.assert_allclose(
        logits.grad, [[2 / 3, 0, 0], [0, 0, 4 / 3]], rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(("samples", "stage"), [(8, FIRST), (0, SECOND)])
def test_without_stored_samples_it_is_fedavg(samples, stage):
    one, plain = learner(samples), LocalTraining(Params(), model(), place())
    state = {}
    if stage is SECOND:
        state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    _, found = one.train(Turn(state, start(), stage, data(stage.task)))
    _, expected = plain.train(Turn({}, start(), stage, data(stage.task)))
    for name, values in expected.payload["base"].items():
        if stage is FIRST or not name.startswith("heads"):
            np.testing.assert_array_equal(found.payload["base"][name], values)


# ---- draws


def drawn(client=0, stage=SECOND, times=3):
    one = learner(12, place(client=client), replay_batch=5)
    watched = Watched(one)
    with simulated():
        state, _ = one.train(Turn({}, start(), FIRST, data(0, 40)))
        one.train(
            Turn(
                state,
                start(),
                stage,
                TaskData(
                    *[Examples(*(tensor[:0] for tensor in data(1).train))] * 3,
                    classes=6,
                ),
            ),
        )
    orders, size = watched["orders"], watched["size"]
    return [next(orders)[:size].tolist() for _ in range(times)]


def test_each_term_has_different_samples_of_its_own_in_every_step():
    found = drawn()
    assert [len({*places}) for places in found] == [5, 5, 5]
    assert all(0 <= place < 12 for places in found for place in places)
    assert len({*map(tuple, found)}) == 3


def test_draws_follow_from_client_and_round_alone():
    assert drawn() == drawn()
    assert drawn() != drawn(client=1)
    assert drawn() != drawn(stage=THIRD)


def test_a_step_has_no_more_samples_than_it_may(monkeypatch):
    one = learner(12, replay_batch=5, where=place(batch_size=10))
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    sizes = []
    one.model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    one.train(Turn(state, start(), SECOND, data(1)))
    # Two steps of two terms, and the validation of 20 samples.
    assert sizes == [5, 5, 5, 5, 20]


# ---- what is stored


def test_a_task_is_stored_when_it_ends_with_the_logits_of_then():
    one = learner()
    state, update = one.train(Turn({}, start(), FIRST, data(0)))
    during, _ = one.train(Turn(state, start(), SECOND, data(1)))
    after, update = one.train(Turn(during, start(), THIRD, data(1)))

    assert during["memory"] is state["memory"]
    memory = after["memory"]
    assert sorted(memory) == ["logits", "rank", "task", "x", "y"]
    assert len(memory["y"]) == 8
    new = memory["task"] == 1
    assert 0 < new.sum() < 8
    expected = logits_of(update.payload["base"], memory["x"][new])
    np.testing.assert_allclose(memory["logits"][new], expected, atol=1e-5)
    old = [r in memory["rank"] for r in state["memory"]["rank"]]
    np.testing.assert_array_equal(
        memory["logits"][~new], state["memory"]["logits"][old]
    )
    assert memory["logits"].dtype == np.float32


def test_samples_chosen_by_their_features_have_their_own_logits():
    one = learner(4, memory_policy="herding")
    state, update = one.train(Turn({}, start(), FIRST, data(0)))
    memory = state["memory"]
    expected = logits_of(update.payload["base"], memory["x"])
    np.testing.assert_allclose(memory["logits"], expected, atol=1e-5)


# ---- runs
