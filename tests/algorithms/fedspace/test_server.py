"""FedSpace's server: how model and prototypes move, and which updates it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import exact

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.fedspace import FedSpaceParams
from strategies.fedspace.server import FedSpace

STAGE = TaskStage(round=1, task=0, starts_task=True, ends_task=True)


def server(**params):
    made = FedSpace(FedSpaceParams(**params), 0)
    made.features, made.classes = 2, 3
    return made


def prototypes(means, held, radius):
    return {
        "means": np.float32(means),
        "held": np.float32(held),
        "radius": np.float32(radius),
    }


def state():
    """Return a state in which classes 0 and 1 are known."""
    known = prototypes([[1, 2], [3, 4], [0, 0]], [1, 1, 0], 9.0)
    return {"base": {"w": np.float32([8, 0])}, "prototypes": known}


def update(w, examples, means, held, radius):
    base = {"w": np.float32(w)}
    return Update(
        {"base": base, "prototypes": prototypes(means, held, radius)}, examples
    )


def two():
    """Return updates of clients that both hold class 2, and one of them class 0."""
    return {
        0: update([4, 4], 3, [[5, 6], [0, 0], [2, 0]], [1, 0, 1], 1.0),
        1: update([0, 8], 1, [[0, 0], [0, 0], [6, 4]], [0, 0, 1], 3.0),
    }


def test_the_server_begins_without_prototypes():
    found = server().init({"w": np.float32([1, 2])})
    assert exact(found) == exact(
        {
            "base": {"w": np.float32([1, 2])},
            "prototypes": prototypes(np.zeros((3, 2)), np.zeros(3), 0.0),
        }
    )
    assert found["prototypes"]["radius"].shape == ()


@pytest.mark.parametrize("absent", ["kept", "dropped"])
def test_model_and_prototypes_move_part_of_the_way(absent):
    strategy = server(server_rate=0.25, prototype_rate=0.5, absent_classes=absent)
    for one in two().values():
        strategy.check_update(state(), one)
    new = strategy.aggregate_train(state(), STAGE, two())
    # The mean model is 3/4 (4, 4) + 1/4 (0, 8).
    np.testing.assert_allclose(new["base"]["w"], [8 - 0.25 * 5, 0.25 * 5])
    # Class 0 moves to what its one holder sent, class 2 begins at the mean of both.
    found = new["prototypes"]
    other = [3, 4] if absent == "kept" else [0, 0]
    np.testing.assert_allclose(found["means"], [[3, 4], other, [3, 1]])
    assert found["held"].tolist() == [1, float(absent == "kept"), 1]
    assert found["radius"] == pytest.approx(1.5)
    assert {a.dtype for group in new.values() for a in group.values()} == {
        np.dtype(np.float32)
    }


def test_a_class_that_was_dropped_begins_anew():
    strategy = server(absent_classes="dropped")
    only = {0: update([4, 4], 3, [[0, 0], [0, 0], [2, 0]], [0, 0, 1], 1.0)}
    gone = strategy.aggregate_train(state(), STAGE, only)
    back = {0: update([4, 4], 3, [[50, 60], [0, 0], [0, 0]], [1, 0, 0], 1.0)}
    found = strategy.aggregate_train(gone, STAGE, back)["prototypes"]
    np.testing.assert_array_equal(found["means"][0], [50, 60])


def test_the_state_of_before_stays_as_it_was():
    before, sent = state(), two()
    server().aggregate_train(before, STAGE, sent)
    assert exact(before) == exact(state())
    for client, one in two().items():
        assert exact(sent[client].payload) == exact(one.payload)


def test_who_has_no_examples_counts_nothing():
    nothing = update([9, 9], 0, [[0, 0], [0, 0], [0, 0]], [0, 0, 0], 0.0)
    strategy = server()
    assert exact(strategy.aggregate_train(state(), STAGE, {0: nothing})) == exact(
        state()
    )
    with_it = strategy.aggregate_train(state(), STAGE, {**two(), 2: nothing})
    assert exact(with_it) == exact(strategy.aggregate_train(state(), STAGE, two()))


def test_the_sum_of_a_round_says_the_same():
    strategy, sent = server(prototype_rate=0.5), two()
    counts = [one.num_examples for one in sent.values()]
    mean = {
        group: {
            name: np.average([u.payload[group][name] for u in sent.values()], 0, counts)
            for name in tensors
        }
        for group, tensors in strategy.summands(state()).items()
    }
    total = Update(mean, 4)
    summed = strategy.aggregate_sum(state(), STAGE, total)
    expected = strategy.aggregate_train(state(), STAGE, sent)
    for group, tensors in expected.items():
        for name, values in tensors.items():
            np.testing.assert_allclose(summed[group][name], values, rtol=1e-6)
    nobody = strategy.aggregate_sum(state(), STAGE, replace(total, num_examples=0))
    assert exact(nobody) == exact(state())


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("held", [-0.1, 0, 1], "held: expected means of at most 1"),
        ("held", [0, 0, 1.5], "held: expected means of at most 1"),
        ("radius", -0.5, r"radius: expected at least 0, got -0\.5"),
    ],
)
def test_a_sum_of_no_honest_clients_is_refused(name, value, sentence):
    known = {**state()["prototypes"], name: np.float32(value)}
    total = Update({**state(), "prototypes": known}, 4)
    with pytest.raises(WireError, match=rf"^prototypes/{sentence}"):
        server().aggregate_sum(state(), STAGE, total)


def test_by_a_median_a_prototype_needs_more_holders_than_may_be_hostile():
    strategy = server(server_rate=1.0, prototype_rate=1.0)
    strategy.aggregation = Aggregation("median")
    values = {0: [1, 1], 1: [2, 2], 2: [900, -900]}
    sent = {
        client: update(
            [v[0], 0],
            1,
            [v, [0, 0], v if client == 2 else [0, 0]],
            [1, 0, client == 2],
            1.0,
        )
        for client, v in values.items()
    }
    found = strategy.aggregate_train(state(), STAGE, sent)["prototypes"]
    np.testing.assert_allclose(found["means"], [[2, 1], [3, 4], [0, 0]])
    assert found["held"].tolist() == [1, 1, 0]


def test_predictions_get_the_model_alone():
    strategy = server()
    assert exact(strategy.configure_train(state(), STAGE, 0)) == exact(state())
    assert strategy.configure_evaluate(state(), STAGE, 0).keys() == {"base"}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("means", np.zeros((3, 3)), r"means: expected float32 of shape \(3, 2\)"),
        ("held", np.zeros(4), r"held: expected float32 of shape \(3,\)"),
        ("radius", np.zeros(1), r"radius: expected float32 of shape \(\)"),
        ("held", [1, 0.5, 1], "held: expected 0 and 1 alone"),
        ("held", [1, 0, 2], "held: expected 0 and 1 alone"),
        ("means", np.ones((3, 2)), "means: expected 0 for a class that is not held"),
        ("radius", -1.0, "radius: expected at least 0, got -1"),
    ],
)
def test_prototypes_that_no_honest_client_has_are_refused(name, value, sentence):
    honest = two()[0]
    sent = {**honest.payload["prototypes"], name: np.float32(value)}
    odd = replace(honest, payload={**honest.payload, "prototypes": sent})
    with pytest.raises(WireError, match=rf"^prototypes/{sentence}"):
        server().check_update(state(), odd)


def test_an_update_without_prototypes_or_with_more_is_refused():
    honest = two()[0].payload
    for groups in ({"base": honest["base"]}, {**honest, "memory/classes": {}}):
        with pytest.raises(WireError, match=r"^groups .*: expected \['base', 'proto"):
            server().check_update(state(), Update(groups, 1))
    less = {n: a for n, a in honest["prototypes"].items() if n != "radius"}
    with pytest.raises(WireError, match=r"tensors \['radius'\] are missing"):
        server().check_update(state(), Update({**honest, "prototypes": less}, 1))
