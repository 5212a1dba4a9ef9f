"""CODA-Prompt, server half: slices that are averaged, rows that are sent, refusals."""

import numpy as np
import pytest
from fakes import exact

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.coda_prompt import (
    BIAS,
    WEIGHT,
    CodaPrompt,
    CodaPromptParams,
    orthonormal_rows,
    rows_of,
)

COUNT, LENGTH, WIDTH, CLASSES = 2, 2, 8, 4
SHAPES = {
    "body.pools.0.keys": (COUNT, WIDTH),
    "body.pools.0.attention": (COUNT, WIDTH),
    "body.pools.0.prompts": (COUNT, LENGTH, WIDTH),
}


def strategy(seed=0, **policy):
    made = CodaPrompt(CodaPromptParams(), ServerContext(seed))
    made.aggregation = Aggregation(**policy)
    return made


def model():
    heads = {WEIGHT: (CLASSES, WIDTH), BIAS: (CLASSES,)}
    return {n: np.full(s, 0.5, np.float32) for n, s in {**SHAPES, **heads}.items()}


def update(values=1.0, classes=(0, 1), examples=2, seed=None):
    """Return an update of equal values, or of random ones."""
    rng = np.random.default_rng(seed)

    def made(shape):
        found = np.full(shape, values) if seed is None else rng.normal(size=shape)
        return np.float32(found)

    heads = {WEIGHT: made((CLASSES, WIDTH)), BIAS: made((CLASSES,))}
    return Update(
        {
            "prompts": {name: made(shape) for name, shape in SHAPES.items()},
            "heads": rows_of(heads, np.array(classes, np.int64)),
        },
        examples,
    )


def stage(number=1, ends=False):
    return TaskStage(number, 0, starts_task=False, ends_task=ends)


def played(server, *rounds):
    """Return the state after rounds, each of updates by client and whether it ends."""
    state = server.init(model())
    for number, (updates, ends) in enumerate(rounds, 1):
        state = server.combine(state, stage(number, ends), updates)
    return state


# ---- new components


def test_new_rows_are_orthonormal_and_orthogonal_to_old_ones_that_are_not():
    rng = np.random.default_rng(1)
    old = rng.normal(size=(5, 12)) + 3  # far from orthogonal to each other
    new = orthonormal_rows(old, 4, rng).astype(np.float64)

    np.testing.assert_allclose(new @ new.T, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(new @ (old / np.linalg.norm(old)).T, 0, atol=1e-6)


def test_rows_that_depend_on_others_leave_the_new_ones_orthogonal():
    old = np.ones((3, 6), np.float32)
    new = orthonormal_rows(old, 2, np.random.default_rng(1))

    np.testing.assert_allclose(new @ new.T, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(new @ old.T, 0, atol=1e-6)


def test_where_there_is_no_room_the_oldest_rows_are_left_out():
    old = np.eye(6, dtype=np.float32)[:5]
    new = orthonormal_rows(old, 2, np.random.default_rng(1))

    np.testing.assert_allclose(new @ new.T, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(new @ old[1:].T, 0, atol=1e-6)
    assert np.abs(new @ old[0]).max() > 0.1
    whole = orthonormal_rows(old, 6, np.random.default_rng(1))
    np.testing.assert_allclose(whole @ whole.T, np.eye(6), atol=1e-6)


def test_each_tasks_components_are_orthonormal_to_all_before():
    ends = [({0: update(seed=n)}, True) for n in range(3)]
    state = played(strategy(), *ends)

    for name, shape in SHAPES.items():
        new = state["prompts/now"][name].reshape(COUNT, -1).astype(np.float64)
        old = np.concatenate([state[f"prompts/{t}"][name] for t in range(3)])
        assert state["prompts/now"][name].shape == shape
        np.testing.assert_allclose(new @ new.T, np.eye(COUNT), atol=1e-6)
        np.testing.assert_allclose(new @ old.reshape(6, -1).T, 0, atol=1e-5)


def test_fresh_components_follow_from_seed_and_task():
    def drawn(seed, tasks):
        ends = [({0: update()}, True)] * tasks
        return played(strategy(seed), *ends)["prompts/now"]["body.pools.0.keys"]

    np.testing.assert_array_equal(drawn(0, 1), drawn(0, 1))
    assert (drawn(0, 1) != drawn(0, 0)).any()
    assert (drawn(0, 1) != drawn(1, 1)).any()


# ---- averages


def test_averaging_slice_and_rows_is_averaging_pool_and_head():
    """A plain reference sends and averages everything, as fed-mammoth does."""
    server, state = strategy(), None
    pool = {name: np.zeros((0, *shape[1:])) for name, shape in SHAPES.items()}
    head = model()
    state = server.init(head)
    for task in range(3):
        classes = (task, task + 1)
        sent = {
            k: update(classes=classes, examples=k + 1, seed=10 * task + k)
            for k in range(3)
        }
        full_pools, full_heads = [], []
        for one in sent.values():
            rows = one.payload["heads"]
            full_heads.append({n: rows[n].overwrite(head[n]) for n in (WEIGHT, BIAS)})
            full_pools.append(
                {n: np.concatenate([pool[n], one.payload["prompts"][n]]) for n in pool}
            )
        pool = {n: np.average([p[n] for p in full_pools], 0, [1, 2, 3]) for n in pool}
        head = {
            n: np.average([h[n] for h in full_heads], 0, [1, 2, 3]).astype(np.float32)
            for n in (WEIGHT, BIAS)
        }
        state = server.combine(state, stage(task + 1, ends=True), sent)

    for name, expected in pool.items():
        found = np.concatenate([state[f"prompts/{t}"][name] for t in range(3)])
        np.testing.assert_allclose(found, expected, atol=1e-6)
    for name, expected in head.items():
        np.testing.assert_allclose(state["heads"][name], expected, atol=1e-6)


def test_a_row_is_the_mean_over_the_clients_that_have_its_class():
    sent = {
        0: update(1, classes=(0, 1), examples=1),
        1: update(5, classes=(1, 2), examples=3),
    }

    state = played(strategy(), (sent, False))

    assert state["heads"][BIAS].tolist() == [1, 4, 5, 0.5]
    assert state["heads"][WEIGHT][:, 0].tolist() == [1, 4, 5, 0.5]
    assert (state["prompts/now"]["body.pools.0.prompts"] == 4).all()


def test_old_components_stay_bit_by_bit_and_so_do_rows_that_nobody_sends():
    server = strategy()
    state = played(server, ({0: update(seed=1), 1: update(seed=2)}, True))
    later = server.combine(state, stage(2), {0: update(classes=(2, 3), seed=3)})

    assert exact({"p": later["prompts/0"]}) == exact({"p": state["prompts/0"]})
    for name, rows in state["heads"].items():
        np.testing.assert_array_equal(later["heads"][name][:2], rows[:2])
        assert (later["heads"][name][2:] != rows[2:]).all()


def test_clients_without_examples_change_nothing_and_tell_of_no_class():
    server = strategy()
    before = server.init(model())

    state = played(server, ({0: update(examples=0), 1: update(3, examples=0)}, False))

    assert exact({"p": state["prompts/now"]}) == exact({"p": before["prompts/now"]})
    assert (state["meta/learned"]["task"] == -1).all()
    beside = {0: update(9, classes=(3,), examples=0), 1: update(3, classes=(0,))}
    state = played(server, (beside, False))
    assert (state["prompts/now"]["body.pools.0.keys"] == 3).all()
    assert state["meta/learned"]["task"].tolist() == [0, -1, -1, -1]


def test_the_order_of_clients_does_not_matter():
    sent = [
        update(classes=c, examples=n, seed=n) for c, n in (((0, 1), 5), ((1, 2), 7))
    ]

    one, two = (
        played(strategy(), (dict(enumerate(order)), True))
        for order in (sent, sent[::-1])
    )

    for group in ("prompts/0", "heads"):
        for name, tensor in one[group].items():
            np.testing.assert_allclose(tensor, two[group][name], rtol=1e-6)


def test_an_outlier_does_not_move_the_median():
    sent = {k: update(v) for k, v in enumerate((1, 2, 1000))}

    state = played(strategy(rule="median"), (sent, False))

    assert (state["prompts/now"]["body.pools.0.keys"] == 2).all()
    assert state["heads"][BIAS].tolist() == [2, 2, 0.5, 0.5]


# ---- what is sent


def sent_rows(payload, group):
    return payload[group][BIAS].indices.tolist() if group in payload else None


def test_what_is_of_finished_tasks_is_sent_once_and_again_to_who_lost_its_memory():
    server = strategy()
    both = {0: update(), 1: update()}
    state = played(server, (both, True), ({0: update(classes=(2,))}, True))

    def sent(state, client):
        found = server.send(state, stage(3), client)
        old = sorted(g for g in found if g.split("/")[-1].isdigit())
        return old, sent_rows(found, "heads/old")

    everything = ["prompts/0", "prompts/1"], [0, 1, 2]
    # What a round's end has made is not known to those who took part in it.
    assert sent(state, 0) == (["prompts/1"], [2])
    assert sent(state, 1) == sent(state, 2) == everything
    assert sent(server.on_state_lost(state, 0), 0) == everything
    later = server.combine(state, stage(3), {2: update()})
    assert sent(later, 2) == ([], None)


def test_in_a_round_the_current_slice_and_rows_travel_and_nothing_else():
    server = strategy()
    state = played(
        server, ({0: update()}, True), ({0: update(classes=(1, 3), seed=1)}, False)
    )

    found = server.send(state, stage(3), 0)

    assert set(found) == {"prompts/now", "heads/now", "meta/task"}
    assert sent_rows(found, "heads/now") == [1, 3]
    assert found["heads/now"][WEIGHT].nnz == 2 * WIDTH
    np.testing.assert_array_equal(
        found["heads/now"][WEIGHT].to_dense()[1], state["heads"][WEIGHT][1]
    )
    # A class that came back is among the current ones, not among the old.
    assert sent_rows(server.send(state, stage(3), 5), "heads/old") == [0]


def test_to_predict_nobody_is_sent_components_that_are_not_trained():
    server = strategy()
    state = played(server, ({0: update()}, True))

    found = server.send_to_predict(state, stage(1, ends=True), 0)
    assert set(found) == {"prompts/0", "heads/old", "heads/now", "meta/task"}
    state = server.combine(state, stage(2), {0: update()})
    found = server.send_to_predict(state, stage(2), 0)
    assert set(found) == {"prompts/now", "heads/now", "meta/task"}


# ---- what is refused


def changed(group="heads", **tensors):
    sent = update()
    names = {"weight": WEIGHT, "bias": BIAS, "keys": "body.pools.0.keys"}
    more = {names[n]: t for n, t in tensors.items()}
    return Update({**sent.payload, group: {**sent.payload[group], **more}}, 2)


def sparse(shape, *indices):
    found = np.array(indices, np.int64)
    return SparseArray(shape, found, np.ones(len(found), np.float32))


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (Update({"base": {}}, 1), r"groups \['base'\]: expected heads and prompts"),
        (Update({**update().payload, "prompts": {}}, 1), "are missing or unknown"),
        (Update({**update().payload, "heads": {}}, 1), "heads: expected heads.0.w"),
        (changed("prompts", keys=np.zeros((3, WIDTH), np.float32)), "of shape"),
        (changed("prompts", keys=np.zeros((COUNT, WIDTH))), "expected float32"),
        (changed("prompts", keys=sparse((COUNT, WIDTH), 0)), "expected a dense"),
        (changed(weight=np.zeros((CLASSES, WIDTH), np.float32)), "expected a sparse"),
        (changed(bias=sparse((CLASSES + 1,), 0)), r"of shape \(4,\)"),
        (changed(bias=sparse((CLASSES,), 0)), "expected whole rows, those of the cl"),
        (changed(bias=sparse((CLASSES,))), "expected whole rows"),
        (changed(weight=sparse((CLASSES, WIDTH), 0, 1)), "expected whole rows"),
        (
            changed(bias=sparse((CLASSES,)), weight=sparse((CLASSES, WIDTH))),
            "expected whole rows",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_refused(sent, complaint):
    server = strategy()
    with pytest.raises(WireError, match=complaint):
        server.check_update(server.init(model()), sent)


def test_a_whole_update_is_taken():
    server = strategy()
    server.check_update(server.init(model()), update())


@pytest.mark.parametrize(
    ("more", "less", "named"),
    [
        ({}, [*SHAPES], "one without prompts"),
        ({"body.w": np.zeros(1)}, [], "one that shares body.w"),
        ({}, [WEIGHT, BIAS], "one without prompts"),
    ],
)
def test_a_model_that_shares_anything_else_is_refused(more, less, named):
    given = {n: t for n, t in {**model(), **more}.items() if n not in less}

    with pytest.raises(
        ConfigError, match=f"model.name: got '{named}', expected prompt"
    ):
        strategy().init(given)
