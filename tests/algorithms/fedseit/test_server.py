"""FedSeIT's server half: dense layer sharing by hand, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import exact

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.fedseit import FedSeit, FedSeitParams
from strategies.fedweit import FedWeitParams
from strategies.fedweit.server import FedWeit

ONE, TWO = "body.convs.0.weight", "body.convs.1.weight"
FEATURES = 2 + 3
"""Filters of both layers."""


def stage(number, task=0, starts_task=False, ends_task=False):
    return TaskStage(
        round=number, task=task, starts_task=starts_task, ends_task=ends_task
    )


def server(**params):
    return FedSeit(FedSeitParams(**params), ServerContext(3))


def model():
    return {
        ONE: np.ones((2, 4, 3), np.float32),
        "body.convs.0.bias": np.ones(2, np.float32),
        TWO: np.full((3, 4, 5), 2, np.float32),
    }


def base(value, channels=(0,)):
    return {
        name: SparseArray.of_channels(np.full_like(weight, value), np.array(channels))
        for name, weight in model().items()
        if weight.ndim == 3
    }


def adapter(value):
    return {
        name: SparseArray.of_nonzero(np.full_like(weight, value))
        for name, weight in model().items()
        if weight.ndim == 3
    }


def projections(count, value):
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
    return Update({"base": base(value), **shared}, 10)


def with_adapters(strategy, clients=3):
    updates = {
        c: Update({"base": {}, "adapters": adapter(c + 1)}, 10) for c in range(clients)
    }
    return strategy.aggregate_train(
        strategy.init(model()), stage(1, ends_task=True), updates
    )


# ---- dense layer sharing


def test_projections_are_averaged_over_the_clients_with_as_many_branches():
    strategy = server(dls=True)
    state = with_adapters(strategy)
    updates = {0: update(2, 1.0), 1: update(3, 7.0), 2: update(2, 4.0), 3: update()}
    for each in updates.values():
        strategy.check_update(state, each)

    new = strategy.aggregate_train(state, stage(1), updates)

    # (1 + 4) / 2 beside the columns' numbers 0, 1, ...; the client with 3 is alone.
    assert exact({"": new["dense/2"]}) == exact({"": projections(2, 2.5)})
    assert exact({"": new["dense/3"]}) == exact({"": projections(3, 7.0)})
    assert not any(group.startswith("dense/") for group in state)

    later = strategy.aggregate_train(new, stage(2), {0: update(2, 9.0)})
    assert exact({"": later["dense/2"]}) == exact({"": projections(2, 9.0)})
    assert exact({"": later["dense/3"]}) == exact({"": projections(3, 7.0)}), "stays"


def test_the_mean_of_huge_values_is_finite():
    strategy = server(dls=True)
    huge = {n: np.full_like(v, 3e38) for n, v in projections(1, 0).items()}
    updates = {c: Update({"base": {}, "dense/1": huge}, 1) for c in range(4)}
    new = strategy.aggregate_train(strategy.init(model()), stage(1), updates)
    assert exact({"": new["dense/1"]}) == exact({"": huge})


def test_a_client_receives_the_projections_for_its_number_of_branches():
    strategy = server(dls=True)
    state = with_adapters(strategy)
    shared = {0: update(2, 1.0), 1: update(3, 7.0)}
    state = strategy.aggregate_train(state, stage(2, task=1), shared)
    # Client 2 begins with the adapters of the two others.
    payload = strategy.configure_train(state, stage(3, task=1, starts_task=True), 2)
    assert set(payload) == {"base", "dense/2", "adapters/0/0", "adapters/1/0"}
    assert exact({"": payload["dense/2"]}) == exact({"": projections(2, 1.0)})
    # Client 1 goes on with the three that it has, whatever has come since.
    payload = strategy.configure_train(state, stage(3, task=1, starts_task=False), 1)
    assert set(payload) == {"base", "dense/3"}
    assert set(strategy.configure_train(state, stage(3), 2)) == {"base"}
    fewer = server(dls=True, knowledge="sample:1")
    payload = fewer.configure_train(state, stage(3, task=1), 2)
    assert set(payload) == {"base"}, "nobody shared projections of one branch"


def test_who_goes_on_with_a_hidden_task_receives_its_own_number_of_branches():
    strategy = server(dls=True)
    state = with_adapters(strategy)
    shared = {0: update(2, 1.0), 1: update(3, 7.0)}
    state = strategy.aggregate_train(state, stage(2), shared)
    # Each round is the first of the only task; two adapters of others are there.
    payload = strategy.configure_train(state, stage(3, starts_task=True), 1)
    assert set(payload) == {"base", "dense/3"}


def test_clients_at_different_tasks_receive_the_projections_of_each():
    strategy = server(dls=True)
    state = with_adapters(strategy)
    for number, (task, count) in enumerate([(1, 2), (0, 3)], start=2):
        now = TaskStage(number, task, starts_task=True, ends_task=True)
        told = replace(update(count), stage=now)
        state = strategy.aggregate_train(state, stage(number), {0: told})
    for task, count in ((1, 2), (0, 3)):
        now = TaskStage(4, task, starts_task=False, ends_task=True)
        assert set(strategy.configure_train(state, now, 0)) == {
            "base",
            f"dense/{count}",
        }


# ---- as in FedWeIT


def test_base_and_adapters_are_those_of_fedweit():
    seit = server(dls=True)
    weit = FedWeit(FedWeitParams(knowledge="previous"), ServerContext(3))
    state = {"seit": seit.init(model()), "weit": weit.init(model())}
    for task in range(2):
        now = stage(task + 1, task, starts_task=True, ends_task=True)
        for client in range(3):
            sent, plain = (
                each.configure_train(state[name], now, client)
                for name, each in (("seit", seit), ("weit", weit))
            )
            rest = {g: a for g, a in sent.items() if not g.startswith("dense/")}
            assert exact(rest) == exact(plain)
        plain = {
            c: Update({"base": base(c + 5), "adapters": adapter(c + 1)}, 10)
            for c in range(3)
        }
        more = {
            c: Update({**u.payload, "dense/2": projections(2, c)}, 10)
            for c, u in plain.items()
        }
        state["seit"] = seit.aggregate_train(state["seit"], now, more)
        state["weit"] = weit.aggregate_train(state["weit"], now, plain)
    own = ("dense/", "meta/branches")
    rest = {g: a for g, a in state["seit"].items() if not g.startswith(own)}
    assert exact(rest) == exact(state["weit"])
    assert float(np.asarray(state["seit"]["base"][ONE])[0, 0, 0]) == 6.0


def test_the_adapters_of_the_task_before_are_the_default():
    strategy = server()
    state = with_adapters(strategy)
    updates = {c: Update({"base": {}, "adapters": adapter(9)}, 10) for c in range(3)}
    state = strategy.aggregate_train(state, stage(2, task=1, ends_task=True), updates)
    payload = strategy.configure_train(state, stage(3, task=2, starts_task=True), 0)
    assert {g for g in payload if g != "base"} == {"adapters/1/1", "adapters/2/1"}


# ---- refusals


def without(count, name):
    return {n: v for n, v in projections(count, 0).items() if n != name}


def replaced(name, tensor):
    return {"dense/2": {**projections(2, 0), name: tensor}}


@pytest.mark.parametrize("dls", [True, False])
def test_projections_are_accepted_with_dls_alone(dls):
    strategy = server(dls=dls)
    state = with_adapters(strategy)
    strategy.check_update(state, update())
    if dls:
        strategy.check_update(state, update(2))
    else:
        with pytest.raises(WireError, match="none without"):
            strategy.check_update(state, update(2))


WIDE = np.zeros((2, 6), np.float32)


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (
            {"dense/2": projections(2, 0), "dense/3": projections(3, 0)},
            "expected one with dls",
        ),
        ({"dense/0": projections(0, 0)}, "dense/0: expected the number"),
        ({"dense/02": projections(2, 0)}, "dense/02: expected the number"),
        ({"dense/2\n": projections(2, 0)}, "expected the number"),
        ({"dense/²": projections(2, 0)}, "expected the number"),
        ({"dense": projections(1, 0)}, "expected base and adapters"),
        ({"dense/" + "9" * 5000: projections(1, 0)}, "expected the number"),
        ({"dense/999999": projections(1, 0)}, "number of branches, 1 to 3"),
        ({"dense/4": projections(4, 0)}, "number of branches, 1 to 3"),
        ({"dense/3": projections(2, 0)}, "dense/3/foreign.*expected shape"),
        ({"dense/2": {}}, "dense/2: expected the tensors"),
        ({"dense/2": without(2, "local")}, "dense/2: expected the tensors"),
        (replaced("odd", np.zeros(1, np.float32)), "dense/2: expected the tensors"),
        (replaced("local", np.zeros((5, 5), np.float32)), "local: expected shape"),
        (replaced(f"foreign/{ONE}", WIDE), r"expected shape \(2, 4\), got \(2, 6\)"),
        (replaced(f"foreign/{ONE}", WIDE[:, :4].astype(np.float64)), "dense float32"),
        (
            replaced(f"foreign/{ONE}", SparseArray.of_nonzero(WIDE[:, :4])),
            "dense float32",
        ),
    ],
)
def test_projections_that_do_not_fit_are_refused(payload, sentence):
    strategy = server(dls=True)
    state = with_adapters(strategy)
    with pytest.raises(WireError, match=sentence):
        strategy.check_update(state, Update({"base": {}, **payload}, 1))
