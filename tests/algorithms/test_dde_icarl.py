"""DDE on iCaRL: neighbours that answer together, and a direction that is left out."""

from dataclasses import replace

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
    features_of,
    logits_of,
    model,
    moved,
    place,
    sigmoid,
    start,
    unit,
)
from watched_fit import Watched

from clients.dde_icarl import DdeIcarl, neighbours
from clients.icarl import Icarl
from fcl_flower.algorithms.base import Turn
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.dde_icarl import DdeIcarlParams
from strategies.icarl import IcarlParams

STILL = place(learning_rate=1e-12)


def learner(where=None, **given):
    params = DdeIcarlParams(**{"memory_samples": 8, "neighbours": 3, **given})
    return DdeIcarl(params, model(), where or place())


# ---- neighbours


def nearest_by_hand(features, among, count):
    """Return the nearest, sample by sample, by the cosine."""
    directions = unit(np.float64(features))
    found = []
    for place_, own in enumerate(directions):
        others = [n for n in np.flatnonzero(among) if n != place_]
        found.append(sorted(others, key=lambda n: -(directions[n] @ own))[:count])
    return found


def test_neighbours_are_the_nearest_in_direction_among_those_that_may_be():
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(600, 4, generator=draw) * torch.rand(600, 1, generator=draw)
    among = torch.arange(600) % 3 > 0
    found = neighbours(features, among, 5)
    assert found.tolist() == nearest_by_hand(features.numpy(), among.numpy(), 5)


@pytest.mark.parametrize(
    ("among", "count", "expected"),
    [(5, 9, 4), (5, 4, 4), (1, 3, 0), (0, 3, 0), (5, 0, 0)],
)
def test_there_are_no_more_neighbours_than_other_samples(among, count, expected):
    features = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    found = neighbours(features, torch.arange(7) < among, count)
    if not expected:
        assert found is None
        return
    assert found.shape == (7, expected)
    for own, row in enumerate(found.tolist()):
        assert own not in row
        assert len({*row}) == expected


# ---- the loss


@pytest.mark.parametrize("growing", [True, False])
def test_labels_are_told_by_a_sample_and_its_neighbours(growing):
    one = learner(where=STILL)
    watched = Watched(one)
    if growing:
        one.model.restrict_head([0, 1])
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    if growing:
        one.model.restrict_head([0, 1, 2, 3])
    old_base = moved(start())["base"]
    one.train(Turn(state, {"base": old_base}, SECOND, data(1)))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    rows = torch.tensor([3, 21, 11, 26])  # two of the task, two exemplars
    x = np.concatenate([data(1).train.x, state["exemplars"]["x"]])
    y = np.concatenate([data(1).train.y, state["exemplars"]["y"]])

    near = nearest_by_hand(features_of(old_base, x), y >= 2, 3)
    answers = np.array([sigmoid(logits_of(now, x[near[row]])).mean(0) for row in rows])

    def by_hand(weight):
        own = sigmoid(logits_of({**now, "heads.0.weight": weight}, x[rows]))[:, :4]
        told = np.concatenate([own[:, :2], (own + answers[:, :4])[:, 2:] / 2], 1)
        targets = np.eye(6)[y[rows]][:, :4]
        targets[:, :2] = sigmoid(logits_of(old_base, x[rows]))[:, :2]
        terms = targets * np.log(told) + (1 - targets) * np.log(1 - told)
        return -terms.sum() / 4

    check_loss(watched, x[rows], y[rows], rows, by_hand)


def test_without_neighbours_and_removal_it_is_icarl():
    kept = []
    params = {"memory_samples": 8}
    for one in (
        learner(neighbours=0, removal=0.0),
        Icarl(IcarlParams(**params), model(), place()),
    ):
        state, update = one.train(Turn({}, start(), FIRST, data(0)))
        state, update = one.train(Turn(state, moved(start()), SECOND, data(1)))
        state, update = one.train(Turn(state, update.payload, THIRD, data(1)))
        with torch.no_grad():
            logits = one.predict(state, update.payload, 0, data(0).test.x)
        kept.append((update.payload["base"], logits))
    for name, values in kept[0][0].items():
        np.testing.assert_array_equal(values, kept[1][0][name])
    assert torch.equal(kept[0][1], kept[1][1])


# ---- momentum


def test_the_sum_of_mean_features_fades_from_step_to_step():
    where = place(learning_rate=1e-7, epochs=3)  # less would be no training
    one = learner(where=where, momentum=0.75)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    assert not state["momentum"]["now"].any()  # in the first task there is none
    received = moved(start())
    x = np.concatenate([data(1).train.x, state["exemplars"]["x"]])
    state, _ = one.train(Turn(state, received, SECOND, data(1)))
    mean = features_of(received["base"], x).mean(0)
    expected = mean * (1 + 0.75 + 0.75**2)
    np.testing.assert_allclose(state["momentum"]["now"], expected, atol=1e-5)
    assert not state["momentum"]["before"].any()

    second, _ = one.train(Turn(state, received, THIRD, data(1)))
    expected = expected * 0.75**3 + mean * (1 + 0.75 + 0.75**2)
    np.testing.assert_allclose(second["momentum"]["now"], expected, atol=1e-5)

    third, _ = one.train(Turn(second, received, FOURTH, data(2)))
    np.testing.assert_array_equal(
        third["momentum"]["before"], second["momentum"]["now"]
    )
    x = np.concatenate([data(2).train.x, second["exemplars"]["x"]])
    mean = features_of(received["base"], x).mean(0)
    expected = mean * (1 + 0.75 + 0.75**2)
    np.testing.assert_allclose(third["momentum"]["now"], expected, atol=1e-5)


BEFORE = np.float32([0.3, -1.0, 0.2, 0.0])
NOW = np.float32([2.0, 1.0, 0.0, -3.0])


def without_momentum(hidden, alpha):
    found = []
    for h in hidden:
        length = np.sqrt(h @ h)
        left = h / length
        for total in (BEFORE, NOW):  # each weighs a half
            cosine = h @ total / length / np.sqrt(total @ total)
            left = left - alpha / 2 * cosine * total / np.sqrt(total @ total)
        found.append(length * left)
    return np.array(found)


def after_a_task(**given):
    one = learner(removal=0.7, **given)
    state, update = one.train(Turn({}, start(), FIRST, data(0)))
    state = {**state, "momentum": {"before": BEFORE, "now": NOW}}
    return one, state, update.payload


def test_the_head_classifies_without_the_part_along_the_momentum():
    one, state, received = after_a_task(classifier="head")
    x = data(1).test.x
    with torch.no_grad():
        found = one.predict(state, received, 0, x).numpy()
    hidden = features_of(received["base"], x)
    weight, bias = (received["base"][f"heads.0.{n}"] for n in ("weight", "bias"))
    expected = without_momentum(hidden, 0.7) @ weight.T + bias
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # What is subtracted is alpha cos(x, u) |x| w.u of the logits, as in the paper.
    part = without_momentum(hidden, 0.7) - hidden
    usual = logits_of(received["base"], x)
    np.testing.assert_allclose(found - usual, part @ weight.T, atol=1e-5)


def test_the_nearest_mean_is_that_of_what_is_left():
    one, state, received = after_a_task()
    x = data(1).test.x
    with torch.no_grad():
        found = one.predict(state, received, 0, x).numpy()
    left = unit(without_momentum(features_of(received["base"], x), 0.7))
    kept = state["exemplars"]
    known = unit(features_of(received["base"], kept["x"]))
    for label in (0, 1):
        mean = unit(known[kept["y"] == label].mean(0))
        expected = -np.linalg.norm(left - mean, axis=1)
        np.testing.assert_allclose(found[:, label], expected, atol=1e-5)


def test_a_client_without_samples_keeps_its_momentum():
    one = learner()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state, _ = one.train(Turn(state, start(), SECOND, data(1)))
    state = {**state, "momentum": {"before": BEFORE, "now": NOW}, "exemplars": {}}
    none = Examples(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    after, _ = one.train(Turn(state, start(), THIRD, TaskData(none, none, none, 6)))
    np.testing.assert_array_equal(after["momentum"]["now"], NOW)


def test_a_task_whose_first_reply_was_lost_is_summed_once():
    one = learner()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state = {**state, "momentum": {"before": BEFORE, "now": NOW}}
    lost, _ = one.train(Turn(state, start(), SECOND, data(1)))
    retried, _ = one.train(
        Turn(lost, start(), replace(THIRD, starts_task=True), data(1))
    )
    for after in (lost, retried):
        np.testing.assert_array_equal(after["momentum"]["before"], NOW)
    now = [after["momentum"]["now"] for after in (lost, retried)]
    assert now[0].any()
    np.testing.assert_allclose(*now, atol=1e-5)


def test_the_momentum_is_summed_without_distillation_too():
    sums = []
    for distillation in (True, False):
        one = learner(distillation=distillation, neighbours=0)
        state, _ = one.train(Turn({}, start(), FIRST, data(0)))
        assert not state["momentum"]["now"].any()
        state, _ = one.train(Turn(state, start(), SECOND, data(1)))
        sums.append(state["momentum"]["now"])
    assert sums[0].any()
    np.testing.assert_allclose(*sums, atol=1e-5)


# ---- runs


def test_neighbours_without_an_old_model_are_refused():
    sentence = r"strategy\.distillation: got false, expected true with"
    with pytest.raises(ConfigError, match=sentence):
        algorithm("dde-icarl").params({"distillation": False})
    found = algorithm("dde-icarl").params({"distillation": False, "neighbours": 0})
    assert not found.distillation
