"""FOT, server half: projected means, sums of sketches, and what is refused."""

import numpy as np
import pytest

from fcl_flower.algorithms.base import Params, ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.fedavg import FedAvg
from strategies.fot import Fot, FotParams

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
NEXT = TaskStage(round=3, task=1, starts_task=True, ends_task=True)
LAYER = "body.fc"


def model(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {f"{LAYER}.weight": (3, 4), f"{LAYER}.bias": (3,), "body.norm": (3,)}
    return {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}


def update(seed=1, examples=1, sketch=None, outside=1.0, stage=None):
    payload = {"base": model(seed)}
    if sketch is not None:
        payload["sketches"] = {LAYER: np.asarray(sketch, np.float32)}
        payload["sketches/outside"] = {LAYER: np.asarray(outside, np.float32)}
    return Update(payload, examples, stage=stage)


def along(*scales):
    """Return a sketch, shape (5, 5), with singular values along the axes."""
    return np.diag([*scales, *[0.0] * (5 - len(scales))])


def strategy(**params):
    return Fot(FotParams(**params), ServerContext(0))


def spanned(state):
    """Return which axes a basis holds, and that it holds nothing else."""
    basis = state["subspace"][LAYER]
    held = np.abs(basis @ basis.T).round(5)
    np.testing.assert_array_equal(held, np.diag(np.diag(held)))
    return np.flatnonzero(np.diag(held)).tolist()


def rows(arrays):
    return np.c_[arrays[f"{LAYER}.weight"], arrays[f"{LAYER}.bias"]]


def after_task(made, *updates):
    state = made.init(model())
    return made.combine(state, LAST, dict(enumerate(updates)))


# ---- rounds


def test_before_a_task_has_ended_it_is_fedavg_bit_for_bit():
    made, plain = strategy(), FedAvg(Params(), ServerContext(0))
    updates = {0: update(1, 3), 1: update(2, 5, along(1))}

    found = made.combine(made.init(model()), FIRST, updates)

    expected = plain.combine({"base": model()}, FIRST, updates)["base"]
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found["base"][name], tensor)
    assert made.send(found, FIRST, 0).keys() == {"base"}


def test_later_means_over_examples_keep_off_the_subspace():
    made = strategy()
    state = after_task(made, update(1, 1, along(0, 3)))
    assert spanned(state) == [1]

    new = made.combine(state, FIRST, {0: update(2, 1), 1: update(3, 3)})

    change = rows(new["base"]) - rows(state["base"])
    mean = (rows(model(2)) + 3 * rows(model(3))) / 4
    np.testing.assert_allclose(change[:, 1], 0, atol=1e-6)
    np.testing.assert_allclose(
        change[:, [0, 2, 3, 4]],
        (mean - rows(state["base"]))[:, [0, 2, 3, 4]],
        atol=1e-6,
    )
    expected = (model(2)["body.norm"] + 3 * model(3)["body.norm"]) / 4
    np.testing.assert_allclose(new["base"]["body.norm"], expected, rtol=1e-6)


def test_the_last_round_of_a_task_is_not_held_back_by_its_own_subspace():
    made = strategy()
    state = after_task(made, update(1, 1, along(9)))
    np.testing.assert_allclose(rows(state["base"]), rows(model(1)), rtol=1e-6)


def test_clients_without_examples_count_for_nothing():
    made = strategy()
    state = after_task(made, update(1, 0, along(3)))
    np.testing.assert_array_equal(rows(state["base"]), rows(model()))
    assert spanned(state) == []


# ---- sketches


@pytest.mark.parametrize(("energy", "axes"), [(0.68, [0]), (0.7, [0, 1])])
def test_sketches_are_added_up_by_the_root_of_their_examples(energy, axes):
    # 1 * 3 + 2 * 2 = 7 along axis 0, 2 * sqrt(5.5) along axis 1: squares 49 and 22, so
    # that axis 0 has 0.69 of them.
    state = after_task(
        strategy(energy=energy),
        update(1, 1, along(3)),
        update(2, 4, along(2)),
        update(3, 4, along(0, 5.5**0.5)),
    )
    assert spanned(state) == axes


def test_shares_outside_are_means_over_examples():
    # Of the rest, (outside - 0.5) / outside has to be held: nothing up to 0.5.
    held = [
        spanned(
            after_task(
                strategy(energy=0.5),
                update(1, 1, along(3), outside=0.9),
                update(1, weight, along(3), outside=0.4),
            )
        )
        for weight in (3, 5)
    ]
    assert held == [[0], []]  # (0.9 + 3 * 0.4) / 4 = 0.525, (0.9 + 5 * 0.4) / 6 = 0.483


def test_energy_grows_with_each_task():
    made = strategy(energy=0.5, energy_step=0.3)
    spread = along(0, 0, 7**0.5, 3**0.5)
    state = after_task(made, update(1, 1, along(7**0.5, 3**0.5)))
    assert spanned(state) == [0]  # 0.7 of it
    state = made.combine(state, NEXT, {0: update(1, 1, spread)})
    assert spanned(state) == [0, 2, 3]  # now 0.8
    state = made.combine(state, NEXT, {0: update(1, 1, np.eye(5))})
    assert spanned(state) == [0, 1, 2, 3, 4]  # at most all


def test_a_task_of_which_nothing_was_sketched_does_not_count():
    made = strategy(energy=0.5, energy_step=0.3)
    state = after_task(made, update(1, 1))
    state = made.combine(state, NEXT, {0: update(1, 1, along(7**0.5, 3**0.5))})
    assert spanned(state) == [0]


def test_who_is_absent_from_the_last_round_has_sketched_in_its_own_last():
    made = strategy(energy=0.9)
    early = update(1, 1, along(0, 2), stage=LAST)
    state = made.combine(made.init(model()), FIRST, {3: early})
    assert spanned(state) == []

    state = made.combine(state, LAST, {0: update(1, 1, along(2))})

    assert spanned(state) == [0, 1]
    # The next task begins with no sums of this one.
    state = made.combine(state, NEXT, {0: update(1, 1, along(0, 0, 2))})
    assert spanned(state) == [0, 1, 2]


def test_sketches_of_who_has_not_ended_its_task_are_not_used():
    made = strategy()
    ongoing = update(1, 1, along(0, 2), stage=FIRST)
    state = after_task(made, ongoing, update(1, 1, along(2)))
    assert spanned(state) == [0]


def test_the_subspace_travels_with_the_last_round_of_a_task_alone():
    made = strategy()
    state = made.init(model())
    assert made.send(state, NEXT, 0).keys() == {"base"}
    state = after_task(made, update(1, 1, along(2)))
    assert made.send(state, FIRST, 0).keys() == {"base"}
    sent = made.send(state, LAST, 0)
    assert sent == {"base": state["base"], "subspace": state["subspace"]}


def test_what_is_taken_of_each_layer_is_reported():
    made = strategy(energy=0.9)
    assert made.report(made.init(model()), FIRST, {}) == {f"subspace/{LAYER}": 0}
    state = after_task(made, update(1, 1, along(2, 2)))
    assert made.report(state, LAST, {}) == {f"subspace/{LAYER}": 0.4}


# ---- what is refused


@pytest.mark.parametrize("share", [-0.1, 1.1, np.nan])
def test_a_share_that_is_none_is_refused(share):
    made = strategy()
    sent = update(1, 1, along(1)).payload
    sent = {**sent, "sketches/outside": {LAYER: np.asarray(share, np.float32)}}
    with pytest.raises(WireError, match="share"):
        made.check_update(made.init(model()), Update(sent, 1))


def test_the_width_of_sketches_is_that_of_the_parameters():
    made = strategy(sketch_width=0.3)
    state = made.init(model())
    made.check_update(state, update(1, 1, np.zeros((5, 2))))
    with pytest.raises(WireError, match=r"sketches/body\.fc: expected"):
        made.check_update(state, update(1, 1, np.zeros((5, 5))))


def test_a_network_without_shared_layers_is_refused():
    with pytest.raises(ConfigError, match="no trained layer"):
        strategy().init({"body.norm.weight": np.zeros(3, np.float32)})
