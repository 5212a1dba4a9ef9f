"""Matched ensembles, client half: where a task starts, who answers, what is sent."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from class_streams import softmax, unit
from fakes import exact as plain
from torch import nn

from clients.matched_ensemble import MatchedEnsemble
from clients.stl import SingleTask
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Training
from strategies.analytic.sums import add_up
from strategies.matched_ensemble import MatchedEnsembleParams
from strategies.stl import StlParams

ME, WIDTH, CLASSES = 2, 4, 3
FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
ONLY = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
NEXT = TaskStage(round=3, task=1, starts_task=True, ends_task=True)

pytestmark = pytest.mark.usefixtures("one_thread")


def learner(kind=MatchedEnsemble, *, rate=0.05, single=False, **params):
    torch.manual_seed(0)
    model = MultiHeadModel(
        nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Dropout(0.3)),
        features=WIDTH,
        input_shape=(3,),
        tasks=2,
        classes=CLASSES,
        single_head=single,
    )
    chosen = (MatchedEnsembleParams if kind is MatchedEnsemble else StlParams)(**params)
    place = ClientContext(ME, 4, Training(2, 5, rate))
    return kind(chosen, model, place)


def examples(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return Examples(torch.randn(count, 3, generator=draw), torch.arange(count) % 3)


def task(seed, count=20, valid=None):
    """Return a task; ``valid``: the networks that its validation samples speak for."""
    parts = [examples(count, seed + part) for part in range(3)]
    if valid:
        parts[1] = approving(*valid)
    return TaskData(*parts, CLASSES)


def network(seed):
    draw = np.random.default_rng(seed)

    def some(*shape):
        return draw.standard_normal(shape).astype(np.float32)

    return {
        "body.0.weight": some(WIDTH, 3),
        "body.0.bias": some(WIDTH),
        "head.weight": some(CLASSES, WIDTH),
        "head.bias": some(CLASSES),
    }


def received(of, same, number=0):
    """Return networks by client and task, and what they share with a task."""
    told = {name: np.array(pairs, np.int64) for name, pairs in same.items()}
    networks = {f"networks/{name}": network(seed) for name, seed in of.items()}
    return {f"same/{number}": told, **networks}


def approving(of, same):
    """Return samples of which each network says a third or more rightly, and more.

    A part of them is labelled by each, among the classes that it is asked for.
    """
    parts = []
    for number, (name, seed) in enumerate(of.items()):
        x = examples(120, 50 + number).x
        mine, its = np.array(same[name]).T
        said = probabilities(network(seed), x.numpy())[:, its].argmax(1)
        parts.append(Examples(x, torch.from_numpy(mine[said])))
    return concat(parts)


def held(valid):
    return {"x": valid.x.numpy(), "y": valid.y.numpy()}


def probabilities(tensors, x):
    weights = {name: np.float64(values) for name, values in tensors.items()}
    h = np.tanh(x @ weights["body.0.weight"].T + weights["body.0.bias"])
    return softmax(h @ weights["head.weight"].T + weights["head.bias"])


def given(a, b):
    return a / a[:, b].sum(1, keepdims=True)


@pytest.mark.parametrize("start", ["matched", "fresh"])
def test_who_matches_nobody_learns_as_one_alone(start):
    ours, plain_one = learner(start=start), learner(SingleTask)
    state, expected = ours.init(), plain_one.init()
    for stage, seed in ((FIRST, 1), (LAST, 1), (NEXT, 7)):
        state, update = ours.train(Turn(state, {"same/0": {}}, stage, task(seed)))
        expected, other = plain_one.train(Turn(expected, {}, stage, task(seed)))
        assert (update.metrics, update.num_examples) == (other.metrics, 20)
        assert plain({"": state["optimizer"]}) == plain({"": expected["optimizer"]})
    x = examples(9, 3).x
    for number in (0, 1):
        found = ours.predict(state, {}, number, x)
        logits = plain_one.predict(expected, {}, number, x)
        torch.testing.assert_close(found, torch.log_softmax(logits, 1))
        own = state[f"networks/{ME}/{number}"]
        assert plain({"": {n: own[n] for n in own if n.startswith("body")}}) == plain(
            {"": expected[f"base/{number}"]}
        )


def test_each_answers_for_the_classes_that_it_has_learned():
    one = learner()
    others = {"0/1": 5, "1/0": 6, "7/3": 8}
    same = {"0/1": [[0, 2], [2, 1]], "1/0": [[0, 1], [1, 2], [2, 0]]}
    state = {**one.init(), f"networks/{ME}/0": network(1)}
    same_of_both = same | {"7/3": [[0, 0], [1, 1]]}
    state["valid/0"] = held(approving(others, same_of_both))
    told = {**received(others, same), "same/1": {"7/3": np.array([[0, 0], [1, 1]])}}
    x = examples(9, 3).x

    found = one.predict(state, told, 0, x)

    alone = probabilities(network(1), x.numpy())
    theirs = probabilities(network(5), x.numpy())
    some = alone.copy()
    known = alone[:, [0]] + alone[:, [2]]
    some[:, 0] = known[:, 0] * theirs[:, 2] / (theirs[:, 2] + theirs[:, 1])
    some[:, 2] = known[:, 0] * theirs[:, 1] / (theirs[:, 2] + theirs[:, 1])
    whole = probabilities(network(6), x.numpy())[:, [1, 2, 0]]
    np.testing.assert_allclose(
        found.exp().numpy(), (alone + some + whole) / 3, atol=1e-6
    )
    assert found.exp().sum(1).numpy() == pytest.approx(1)


def test_what_came_in_training_answers_in_a_test_and_can_be_left_unasked():
    who = {"0/1": 5}, {"0/1": [[0, 2], [2, 1]]}
    told, data = received(*who), task(1, valid=who)
    x = examples(9, 3).x
    found = {}
    for ask in ("matched", "own"):
        one = learner(ask=ask, start="fresh")
        state, _ = one.train(Turn(one.init(), told, ONLY, data))
        own = probabilities(state[f"networks/{ME}/0"], x.numpy())
        assert one.predict(state, {}, 0, x).equal(one.predict(state, told, 0, x))
        found[ask] = np.abs(one.predict(state, {}, 0, x).exp().numpy() - own).max()
    assert found["own"] < 1e-6 < 1e-3 < found["matched"]


def test_a_network_that_is_not_there_is_not_asked():
    one = learner()
    state = {**one.init(), f"networks/{ME}/0": network(1)}
    told = received({}, {"0/1": [[0, 2], [2, 1]]})
    x = examples(9, 3).x
    expected = probabilities(network(1), x.numpy())
    np.testing.assert_allclose(
        one.predict(state, told, 0, x).exp().numpy(), expected, atol=1e-6
    )


@pytest.mark.parametrize(("samples", "right"), [(20, 12), (20, 13), (2, 2), (3, 3)])
def test_who_is_no_better_than_chance_is_not_asked(samples, right):
    """Of two classes: 13 of 20, and 3 of 3, come about by chance less than 1 in 5."""
    one = learner()
    who = {"0/1": 5}, {"0/1": [[0, 2], [2, 1]]}
    speaks_for = approving(*who)
    y = speaks_for.y[:samples].clone()
    y[right:] = 2 - y[right:]
    # Samples of a class that the network has not say nothing of it.
    x = torch.cat([speaks_for.x[:samples], examples(30, 9).x])
    y = torch.cat([y, torch.ones(30, dtype=torch.int64)])
    state = {**one.init(), f"networks/{ME}/0": network(1)}
    state["valid/0"] = held(Examples(x, y))
    x = examples(9, 3).x
    alone = probabilities(network(1), x.numpy())
    found = one.predict(state, received(*who), 0, x).exp().numpy()
    asked = np.abs(found - alone).max() > 1e-3
    assert asked == ((samples, right) in {(20, 13), (3, 3)})


def test_without_samples_to_test_it_nobody_is_asked():
    one = learner()
    state = {**one.init(), f"networks/{ME}/0": network(1)}
    x = examples(9, 3).x
    alone = one.predict(state, {}, 0, x)
    told = received({"0/1": 5}, {"0/1": [[0, 2], [2, 1]]})
    for valid in (examples(0, 1), Examples(x, torch.ones(9, dtype=torch.int64))):
        state["valid/0"] = held(valid)
        assert one.predict(state, told, 0, x).equal(alone)


def test_a_network_without_an_answer_is_not_counted():
    one = learner()
    state = {**one.init(), f"networks/{ME}/0": network(1)}
    told = received({"0/1": 5}, {"0/1": [[0, 2], [2, 1]]})
    # Whoever has no numbers answers with the first class of all.
    zeros = Examples(examples(30, 9).x, torch.zeros(30, dtype=torch.int64))
    state["valid/0"] = held(zeros)
    huge = {n: np.full_like(v, 3e38) for n, v in told["networks/0/1"].items()}
    huge["body.0.bias"][1:] *= -1  # so that infinity meets its opposite
    x = examples(9, 3).x
    found = one.predict(state, {**told, "networks/0/1": huge}, 0, x)
    expected = probabilities(network(1), x.numpy())
    np.testing.assert_allclose(found.exp().numpy(), expected, atol=1e-6)


def test_a_task_starts_from_the_network_that_has_most_of_its_classes():
    one = learner(rate=1e-9)
    same = {
        "0/3": [[0, 2], [2, 1]],
        "0/1": [[0, 1], [1, 2], [2, 0]],
        "0/0": [[0, 0], [1, 1], [2, 2]],
    }
    of = {"0/3": 4, "0/1": 5, "0/0": 6}
    data = task(1, valid=(of, same))
    state, _ = one.train(Turn(one.init(), received(of, same), FIRST, data))
    found, expected = state[f"networks/{ME}/0"], network(5)
    for name in ("head.weight", "head.bias"):
        expected[name] = expected[name][[1, 2, 0]]
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6)


def test_a_task_can_start_from_nobody():
    one = learner(rate=1e-9, start="fresh")
    who = {"0/1": 5}, {"0/1": [[0, 1], [1, 2], [2, 0]]}
    first = one.init()
    state, _ = one.train(Turn(first, received(*who), FIRST, task(1, valid=who)))
    found = state[f"networks/{ME}/0"]
    for name, values in first["base"].items():
        np.testing.assert_allclose(found[name], values, atol=1e-6)


def test_rows_of_the_head_that_nobody_has_are_fresh():
    one = learner(rate=1e-9)
    fresh = {n: v.detach().numpy() for n, v in one.model.heads[1].named_parameters()}
    who = {"0/3": 4}, {"0/3": [[0, 2], [2, 1]]}
    stage, data = replace(NEXT, ends_task=False), task(1, valid=who)
    state, _ = one.train(Turn(one.init(), received(*who, number=1), stage, data))
    found, theirs = state[f"networks/{ME}/1"], network(4)
    np.testing.assert_allclose(found["body.0.bias"], theirs["body.0.bias"], atol=1e-6)
    for name in ("weight", "bias"):
        rows = np.array(fresh[name])
        rows[[0, 2]] = theirs[f"head.{name}"][[2, 1]]
        np.testing.assert_allclose(found[f"head.{name}"], rows, atol=1e-6)


def test_a_task_goes_on_with_its_own_network_whatever_comes():
    one = learner()
    who = {"0/1": 5}, {"0/1": [[0, 1], [1, 2], [2, 0]]}
    told, data = received(*who), task(1, valid=who)
    state, _ = one.train(Turn(one.init(), {"same/0": {}}, FIRST, data))
    with_it, _ = one.train(Turn(state, told, LAST, data))
    without, _ = one.train(Turn(state, {"same/0": {}}, LAST, data))
    own = f"networks/{ME}/0"
    assert plain({own: with_it[own]}) == plain({own: without[own]})


def test_what_is_sent():
    one = learner()
    told = received({"0/1": 5}, {"0/1": [[0, 1], [1, 2]]})
    state, update = one.train(Turn(one.init(), told, FIRST, task(1)))
    assert update.payload.keys() == {"meta"}
    assert update.payload["meta"]["held"].tolist() == [[0, 1], [ME, 0]]
    assert state["optimizer"]

    state, update = one.train(Turn(state, {"same/0": told["same/0"]}, LAST, task(1)))
    assert update.payload["meta"]["held"].tolist() == [[0, 1], [ME, 0]]
    assert update.payload["meta"]["held"].dtype == np.int64
    own = f"networks/{ME}/0"
    assert plain({own: update.payload["networks/0"]}) == plain({own: state[own]})
    kept = {"base", "same/0", "networks/0/1", own, "valid/0", "optimizer"}
    assert state.keys() == kept
    assert np.array_equal(state["valid/0"]["x"], task(1).valid.x)
    assert np.array_equal(state["valid/0"]["y"], task(1).valid.y)
    assert state["optimizer"] == {}


def test_a_network_that_the_server_misses_is_sent_with_the_next_update():
    one = learner()
    state, _ = one.train(Turn(one.init(), {"same/0": {}}, FIRST, task(1)))
    asked = {"same/0": {}, "meta": {"missing": np.array([0, 5])}}
    state, update = one.train(Turn(state, asked, NEXT, task(7)))
    assert update.payload.keys() == {"meta", "networks/0", "networks/1"}
    for number in (0, 1):
        own = f"networks/{ME}/{number}"
        sent = {own: update.payload[f"networks/{number}"]}
        assert plain(sent) == plain({own: state[own]})
    assert "meta" not in state


@pytest.mark.parametrize(
    ("params", "count"), [({"min_samples": 21}, 20), ({"matching": "none"}, 20)]
)
def test_nothing_of_the_data_is_sent(params, count):
    one = learner(**params)
    state, update = one.train(Turn(one.init(), {}, ONLY, task(1, count)))
    assert update.payload.keys() == {"meta"}
    assert ("valid/0" in state) == ("min_samples" in params)
    if "min_samples" in params:
        assert one.answer_query(Turn(one.init(), {}, ONLY, task(1, count))) == {}
        assert one.answer_query(Turn(one.init(), {}, ONLY, task(1, count + 1)))


def test_the_sums_are_over_features_of_the_first_network():
    one = learner()
    start = one.init()
    state, _ = one.train(Turn(start, {"same/0": {}}, ONLY, task(1)))
    assert one.answer_query(Turn(state, {}, ONLY, task(1))).keys() == {"sums"}

    data, base = task(1), start["base"]
    found = add_up(
        [one.answer_query(Turn(state, {}, NEXT, data))["sums"]], CLASSES, WIDTH
    )

    x = np.concatenate([data.train.x, data.valid.x]).astype(np.float64)
    y = np.concatenate([data.train.y, data.valid.y])
    h = unit(np.tanh(x @ base["body.0.weight"].T + base["body.0.bias"]))
    np.testing.assert_allclose(found.gram, h.T @ h, atol=1e-5)
    for label in range(CLASSES):
        assert found.counts[label] == (y == label).sum()
        np.testing.assert_allclose(found.means[label], h[y == label].mean(0), atol=1e-5)


def test_a_network_that_comes_back_answers_for_its_task():
    one = learner()
    state, update = one.train(Turn(one.init(), {"same/0": {}}, ONLY, task(1)))
    x = examples(9, 3).x
    expected = one.predict(state, {}, 0, x)
    back = {f"networks/{ME}/0": update.payload["networks/0"]}
    assert one.predict(one.init(), back, 0, x).equal(expected)


def test_an_untrained_task_is_answered_by_the_first_network():
    one = learner()
    x = examples(9, 3).x
    expected = one.predict(one.init(), {}, 1, x)
    state, _ = one.train(Turn(one.init(), {"same/0": {}}, ONLY, task(1)))
    assert one.predict(state, {}, 1, x).equal(expected)


def test_with_a_single_head_no_features_are_sent():
    one = learner(single=True)
    sums = one.answer_query(Turn(one.init(), {}, ONLY, task(1)))["sums"]
    assert sums["cross"][:, -1].tolist() == [14, 14, 12]
    assert not sums["cross"][:, :-1].any()
    assert not any(values.any() for name, values in sums.items() if name != "cross")


def test_a_single_head_is_a_part_of_each_network():
    one = learner(single=True)
    who = {"0/1": 5}, {"0/1": [[1, 1], [2, 2]]}
    data = task(1, valid=who)
    state, update = one.train(Turn(one.init(), received(*who), ONLY, data))
    assert update.payload["networks/0"].keys() == network(0).keys()
    x = examples(9, 3).x
    alone = probabilities(state[f"networks/{ME}/0"], x.numpy())
    theirs = probabilities(network(5), x.numpy())
    some = alone.copy()
    some[:, 1:] = given(theirs, [1, 2])[:, 1:] * alone[:, 1:].sum(1, keepdims=True)
    found = one.predict(state, {}, 0, x).exp().numpy()
    np.testing.assert_allclose(found, (alone + some) / 2, atol=1e-6)
