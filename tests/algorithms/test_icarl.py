"""iCaRL: its loss, its exemplars, and its nearest mean."""

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    SECOND,
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

from clients.icarl import Icarl
from fcl_flower.algorithms.base import Turn
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.icarl import IcarlParams


def learner(samples=8, where=None, **more):
    params = IcarlParams(memory_samples=samples, **more)
    return Icarl(params, model(), where or place())


# ---- the loss


@pytest.mark.parametrize("distillation", [True, False])
@pytest.mark.parametrize("growing", [True, False])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(distillation, growing):
    one = learner(distillation=distillation, where=place(learning_rate=1e-12))
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
    joined_x = np.concatenate([data(1).train.x, state["exemplars"]["x"]])
    joined_y = np.concatenate([data(1).train.y, state["exemplars"]["y"]])
    x, y = joined_x[rows], joined_y[rows]

    def by_hand(weight):
        z = logits_of({**now, "heads.0.weight": weight}, x)
        targets = np.eye(6)[y]
        if distillation:
            targets[:, :2] = sigmoid(logits_of(old_base, x))[:, :2]
        g, q = sigmoid(z)[:, :4], targets[:, :4]
        return -(q * np.log(g) + (1 - q) * np.log(1 - g)).sum() / 4

    check_loss(watched, x, y, rows, by_hand)


def test_the_first_task_is_trained_by_a_sigmoid_for_each_of_its_classes():
    one = learner()
    _, update = one.train(Turn({}, start(), FIRST, data(0)))
    oracle, task = model(), data(0).train
    optimizer = torch.optim.Adam(oracle.parameters(), lr=0.01)
    z = oracle(task.x, 0)[:, :2]
    own = torch.nn.functional.one_hot(task.y, 2).double()
    p = torch.sigmoid(z.double())
    (-(own * p.log() + (1 - own) * (1 - p).log()).sum() / 20).backward()
    optimizer.step()
    for name, values in update.payload["base"].items():
        np.testing.assert_allclose(values, oracle.state_dict()[name], atol=1e-6)
    assert update.num_examples == 20


def test_a_class_that_comes_again_is_told_by_its_labels():
    one = learner()
    watched = Watched(one)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    task = data(1)
    mixed = Examples(task.train.x, task.train.y - 1)  # classes 1 and 2
    one.train(Turn(state, start(), SECOND, TaskData(mixed, task.valid, task.test, 6)))
    assert watched["distilled"].tolist() == [0]
    assert watched["known"].tolist() == [0, 1, 2]


# ---- exemplars


def herded(features, count):
    features, chosen = unit(features), []
    for k in range(1, count + 1):
        distances = [
            np.inf
            if i in chosen
            else np.linalg.norm(features.mean(0) - (features[[*chosen, i]].sum(0)) / k)
            for i in range(len(features))
        ]
        chosen.append(int(np.argmin(distances)))
    return chosen


def test_exemplars_are_herded_by_the_features_that_the_client_has_learned():
    one = learner(6)
    state, update = one.train(Turn({}, start(), FIRST, data(0)))
    x, y = (part.numpy() for part in data(0).train)
    features = features_of(update.payload["base"], x)
    expected = []
    for label in (0, 1):
        places = np.flatnonzero(y == label)
        expected += places[herded(features[places], 3)].tolist()
    kept = state["exemplars"]
    np.testing.assert_array_equal(kept["x"], x[sorted(expected)])
    np.testing.assert_array_equal(kept["y"], y[sorted(expected)])


# ---- predictions


def test_the_nearest_mean_of_exemplars_is_that_of_the_received_model():
    one = learner(7)
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    state, _ = one.train(Turn(state, start(), FOURTH, data(2)))
    received = moved(start(), 0.03)
    x = data(1).test.x

    logits = one.predict(state, received, 0, x).detach().numpy()

    kept, own = state["exemplars"], unit(features_of(received["base"], x))
    features = unit(features_of(received["base"], kept["x"]))
    for label in (0, 1, 4, 5):
        mean = unit(features[kept["y"] == label].mean(0))
        distance = np.linalg.norm(own - mean, axis=1)
        np.testing.assert_allclose(logits[:, label], -distance, atol=1e-5)
    assert (logits[:, 2:4] < -1e8).all()
    assert len(set(logits.argmax(1).tolist())) > 1


def test_a_prediction_drops_nothing_out():
    logits = []
    for dropout in (0.0, 0.5):
        one = Icarl(IcarlParams(), model(dropout), place())
        state, _ = learner().train(Turn({}, start(), FIRST, data(0)))
        one.model.train()
        logits.append(one.predict(state, start(), 0, data(0).test.x))
    torch.testing.assert_close(*logits)


def test_without_exemplars_nothing_is_known():
    logits = learner().predict({}, start(), 0, data(0).test.x)
    assert torch.isfinite(logits).all()
    assert len(logits.unique()) == 1


def test_the_head_may_predict_in_the_place_of_the_means():
    one = learner(classifier="head")
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    x = data(0).test.x
    logits = one.predict(state, start(), 0, x).detach().numpy()
    np.testing.assert_allclose(logits, logits_of(start()["base"], x), atol=1e-5)


# ---- runs
