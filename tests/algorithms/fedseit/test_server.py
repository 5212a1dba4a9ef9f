"""FedSeIT's server half: dense layer sharing by hand, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import exact

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.fedseit import FedSeit, FedSeitParams

ONE, TWO = "body.convs.0.weight", "body.convs.1.weight"
WEIGHTS = {
    ONE: np.ones((2, 4, 3), np.float32),
    TWO: np.full((3, 4, 5), 2, np.float32),
}
FEATURES = 2 + 3
"""Filters of both layers."""


def stage(number, task=0, starts_task=False, ends_task=False):
    return TaskStage(number, task, starts_task, ends_task)


def server(**params):
    return FedSeit(FedSeitParams(**{"dls": True, **params}), ServerContext(3))


def projections(count, value=0.0):
    shapes = {
        "local": (FEATURES, 2 * FEATURES),
        f"foreign/{ONE}": (2, count * 2),
        f"foreign/{TWO}": (3, count * 3),
    }
    return {
        name: np.full(shape, value, np.float32) + np.arange(shape[1], dtype=np.float32)
        for name, shape in shapes.items()
    }


def update(count=None, value=0.0):
    shared = {} if count is None else {f"dense/{count}": projections(count, value)}
    return Update({"base": {}, **shared}, 10)


def with_adapters(strategy):
    adapter = {name: SparseArray.of_nonzero(values) for name, values in WEIGHTS.items()}
    updates = dict.fromkeys(range(3), Update({"base": {}, "adapters": adapter}, 10))
    state = strategy.init({**WEIGHTS, "body.convs.0.bias": np.ones(2, np.float32)})
    return strategy.combine(state, stage(1, ends_task=True), updates)


def received(strategy, state, number, client, **where):
    payload = strategy.send(state, stage(number, **where), client)
    return payload.keys() - {"base"}


def test_projections_are_averaged_over_the_clients_with_as_many_branches():
    strategy = server()
    state = with_adapters(strategy)
    updates = {0: update(2, 1.0), 1: update(3, 7.0), 2: update(2, 4.0), 3: update()}
    for each in updates.values():
        strategy.check_update(state, each)
    new = strategy.combine(state, stage(1), updates)
    # (1 + 4) / 2 beside the columns' numbers 0, 1, ...; the client with 3 is alone.
    assert exact({"": new["dense/2"]}) == exact({"": projections(2, 2.5)})
    assert exact({"": new["dense/3"]}) == exact({"": projections(3, 7.0)})

    later = strategy.combine(new, stage(2), {0: update(2, 9.0)})
    assert exact({"": later["dense/2"]}) == exact({"": projections(2, 9.0)})
    assert later["dense/3"] is new["dense/3"]
    huge = {n: np.full_like(v, 3e38) for n, v in projections(1).items()}
    sent = dict.fromkeys(range(4), Update({"base": {}, "dense/1": huge}, 1))
    new = strategy.combine(state, stage(1), sent)
    assert exact({"": new["dense/1"]}) == exact({"": huge})


def test_a_client_receives_the_projections_for_its_number_of_branches():
    strategy = server()
    shared = {0: update(2, 1.0), 1: update(3, 7.0)}
    state = strategy.combine(with_adapters(strategy), stage(2, 1), shared)
    # Client 2 begins with the adapters of the two others.
    found = received(strategy, state, 3, 2, task=1, starts_task=True)
    assert found == {"dense/2", "adapters/0/0", "adapters/1/0"}
    # Client 1 goes on with the three that it has, whatever has come since.
    assert received(strategy, state, 3, 1, task=1) == {"dense/3"}
    assert received(strategy, state, 3, 2) == set()
    fewer = server(knowledge="sample:1")
    found = received(fewer, state, 3, 2, task=1, starts_task=True)
    assert len(found) == 1, "nobody shared projections of one branch"


def test_where_a_task_is_hidden_or_another_than_the_rounds_its_own_number_counts():
    strategy = server()
    state = with_adapters(strategy)
    hidden = strategy.combine(state, stage(2), {1: update(3, 7.0)})
    # Each round is the first of the only task; two adapters of others are there.
    assert received(strategy, hidden, 3, 1, starts_task=True) == {"dense/3"}
    for number, (task, count) in enumerate([(1, 2), (0, 3)], start=2):
        told = replace(update(count), stage=stage(number, task))
        state = strategy.combine(state, stage(number), {0: told})
    for task, count in ((1, 2), (0, 3)):
        assert received(strategy, state, 4, 0, task=task) == {f"dense/{count}"}


# ---- refusals


def replaced(name, tensor):
    return {"dense/2": {**projections(2), name: tensor}}


NARROW = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (
            {"dense/2": projections(2), "dense/3": projections(3)},
            "expected one with dls",
        ),
        ({"dense/0": projections(0)}, "dense/0: expected the number"),
        ({"dense/02": projections(2)}, "dense/02: expected the number"),
        ({"dense/2\n": projections(2)}, "expected the number"),
        ({"dense/²": projections(2)}, "expected the number"),
        ({"dense": projections(1)}, "expected base and adapters"),
        ({"dense/" + "9" * 5000: projections(1)}, "expected the number"),
        ({"dense/4": projections(4)}, "number of branches, 1 to 3"),
        ({"dense/3": projections(2)}, "dense/3/foreign.*of shape"),
        ({"dense/2": {}}, "dense/2: tensors .* are missing or unknown"),
        (replaced("odd", NARROW), "dense/2: tensors .* are missing or unknown"),
        (
            replaced(f"foreign/{ONE}", NARROW.T),
            r"of shape \(2, 4\), got float32 of shape \(4, 2",
        ),
        (replaced(f"foreign/{ONE}", NARROW.astype(np.float64)), "expected float32"),
        (
            replaced(f"foreign/{ONE}", SparseArray.of_nonzero(NARROW)),
            "expected a dense",
        ),
    ],
)
def test_projections_that_do_not_fit_are_refused(payload, sentence):
    strategy = server()
    with pytest.raises(WireError, match=sentence):
        strategy.check_update(
            with_adapters(strategy), Update({"base": {}, **payload}, 1)
        )


def test_projections_are_refused_without_dls():
    strategy = server(dls=False)
    with pytest.raises(WireError, match="none without"):
        strategy.check_update(with_adapters(strategy), update(2))
