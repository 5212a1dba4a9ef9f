"""LoRM, server half: turns, merges, what travels and what is refused."""

import numpy as np
import pytest

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.analytic.sums import upper_half
from strategies.lorm import Lorm, LormParams, merged_layer, trained_factor

CLASSES, FEATURES = 4, 2
LAYER, OTHER = "body.adapters.0", "body.adapters.1"


def model():
    """Return two changed layers, (3 to 2) and (2 to 2), of rank 1, and a head."""
    shapes = {
        f"{LAYER}.down": (1, 3),
        f"{LAYER}.up": (2, 1),
        f"{OTHER}.down": (1, 2),
        f"{OTHER}.up": (2, 1),
        "heads.0.weight": (CLASSES, FEATURES),
        "heads.0.bias": (CLASSES,),
    }
    return {n: np.full(s, 0.5, np.float32) for n, s in shapes.items()}


def strategy(seed=0):
    return Lorm(LormParams(), ServerContext(seed))


def stage(number, ends=False):
    return TaskStage(number, 0, starts_task=number == 1, ends_task=ends)


def f32(*values):
    return np.array(values, np.float32)


def update(factor=".up", values=1.0, classes=(0, 1), examples=2, seed=0, **changed):
    """Return what a client sends: random inputs, constant rows, a factor."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5, FEATURES))
    shapes = {".up": {LAYER: (2, 1), OTHER: (2, 1)}}
    shapes[".down"] = {LAYER: (1, 3), OTHER: (1, 2)}
    payload = {
        "adapters": {
            layer + factor: np.full(shape, values, np.float32)
            for layer, shape in shapes[factor].items()
        },
        "grams": {
            LAYER: rng.uniform(0.1, 2, 3).astype(np.float32),
            OTHER: rng.uniform(0.1, 2, 2).astype(np.float32),
            "tokens": np.asarray(10),
            "head": upper_half(features.T @ features / 5).astype(np.float32),
        },
        "heads": {
            "classes": np.array(classes),
            "heads.0.weight": np.full((len(classes), FEATURES), values, np.float32),
            "heads.0.bias": np.full(len(classes), values, np.float32),
        },
    }
    for group, tensors in changed.items():
        payload[group] = {
            name: tensor
            for name, tensor in {**payload[group], **tensors}.items()
            if tensor is not None
        }
    return Update(payload, examples)


def played(server, *rounds):
    """Return the state after some rounds, each of updates by client."""
    state = server.init(model())
    for number, (updates, ends) in enumerate(rounds, 1):
        for one in updates.values():
            server.check_update(state, one)
        state = server.combine(state, stage(number, ends), updates)
    return state


# ---------------------------------------------------------------- turns and tasks


def test_a_task_starts_with_a_random_factor_and_no_change():
    server = strategy()
    state = server.init(model())

    adapters = state["adapters/now"]
    assert not any(adapters[f"{layer}.up"].any() for layer in (LAYER, OTHER))
    for layer, inputs in ((LAYER, 3), (OTHER, 2)):
        down = adapters[f"{layer}.down"]
        assert down.shape == (1, inputs)
        assert 0 < np.abs(down).max() <= inputs**-0.5
    assert trained_factor(state) == ".up"
    np.testing.assert_array_equal(state["heads"]["heads.0.bias"], [0.5] * CLASSES)


def test_factors_take_turns_and_the_other_one_stays():
    server = strategy()
    start = server.init(model())
    one = played(server, ({0: update(values=2)}, False))
    two = played(
        server, ({0: update(values=2)}, False), ({0: update(".down", 3)}, False)
    )

    up, down = f"{LAYER}.up", f"{LAYER}.down"
    assert [trained_factor(s) for s in (start, one, two)] == [".up", ".down", ".up"]
    np.testing.assert_array_equal(one["adapters/now"][up], [[2], [2]])
    np.testing.assert_array_equal(
        one["adapters/now"][down], start["adapters/now"][down]
    )
    np.testing.assert_array_equal(two["adapters/now"][up], [[2], [2]])
    np.testing.assert_array_equal(two["adapters/now"][down], [[3, 3, 3]])


def test_second_factors_are_merged_by_what_enters_their_layer():
    server = strategy()
    down = server.init(model())["adapters/now"][f"{LAYER}.down"].astype(float)
    sent = {
        0: update(values=1, grams={LAYER: f32(1, 0, 2), "tokens": np.asarray(10)}),
        1: update(values=4, grams={LAYER: f32(3, 1, 0), "tokens": np.asarray(30)}),
    }

    state = played(server, (sent, False))

    # A Gamma A^T is a number, as the rank is 1; Gamma is a mean times tokens.
    seen = [float((down**2 @ gram)[0]) for gram in ([10, 0, 20], [90, 30, 0])]
    expected = (1 * seen[0] + 4 * seen[1]) / sum(seen)
    np.testing.assert_allclose(
        state["adapters/now"][f"{LAYER}.up"], [[expected]] * 2, rtol=1e-5
    )


# ---------------------------------------------------------------- merging


def test_first_factors_are_merged_input_by_input():
    grams = [f32(1, 0, 2), f32(3, 1, 0)]
    sent = {
        k: update(".down", v, grams={LAYER: grams[k], "tokens": np.asarray(tokens)})
        for k, v, tokens in ((0, 1, 10), (1, 4, 30))
    }

    state = played(strategy(), ({0: update()}, False), (sent, False))

    # (1 * 10 + 4 * 90) / 100; the others are seen by one client alone.
    down = state["adapters/now"][f"{LAYER}.down"]
    np.testing.assert_allclose(down, [[3.7, 4, 1]], rtol=1e-6)
    # (10 * 1 + 30 * 3) / 40, and so on.
    np.testing.assert_allclose(state["grams/now"][LAYER], [2.5, 0.75, 0.5])
    assert int(state["grams/now"]["tokens"]) == 40


def test_rows_of_the_head_are_merged_of_those_who_learned_them():
    half = {
        k: upper_half(np.diag(g)).astype(np.float32)
        for k, g in enumerate(([1.0, 2.0], [3.0, 2.0]))
    }
    sent = {
        0: update(values=1, classes=(0, 1), examples=10, grams={"head": half[0]}),
        1: update(values=4, classes=(1, 2), examples=30, grams={"head": half[1]}),
    }

    state = played(strategy(), (sent, False))

    # Class 1: (1 * 10 + 4 * 90) / 100 and (1 * 20 + 4 * 60) / 80; bias by examples.
    np.testing.assert_allclose(
        state["heads"]["heads.0.weight"], [[1, 1], [3.7, 3.25], [4, 4], [0.5, 0.5]]
    )
    np.testing.assert_allclose(state["heads"]["heads.0.bias"], [1, 3.25, 4, 0.5])
    assert state["meta/known"]["classes"].tolist() == [1, 1, 1, 0]
    assert state["meta/task"]["classes"].tolist() == [1, 1, 1, 0]


def test_heads_are_merged_with_all_of_the_gram_matrix():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(FEATURES, 40)) @ np.diag(rng.uniform(0, 2, 40)) for _ in "ab"]
    w = [rng.normal(size=(2, FEATURES)).astype(np.float32) for _ in "ab"]
    sent = {
        k: update(
            classes=(0, 2),
            examples=40,
            grams={"head": upper_half(x[k] @ x[k].T / 40).astype(np.float32)},
            heads={"heads.0.weight": w[k]},
        )
        for k in (0, 1)
    }

    state = played(strategy(), (sent, False))

    answers = np.concatenate([w[k] @ x[k] for k in (0, 1)], 1)
    expected = np.linalg.lstsq(np.concatenate(x, 1).T, answers.T, rcond=None)[0].T
    np.testing.assert_allclose(
        state["heads"]["heads.0.weight"][[0, 2]], expected, rtol=1e-4
    )


def test_tasks_are_merged_by_what_entered_the_layer_in_each():
    server = strategy()
    grams = [f32(1, 0, 2), f32(3, 1, 0)]
    rounds = [
        ({0: update(values=v, grams={LAYER: g, "tokens": np.asarray(n)})}, True)
        for v, g, n in ((1, grams[0], 10), (4, grams[1], 30))
    ]
    state = played(server, *rounds)

    down, up = merged_layer(state, LAYER)

    downs = [state[f"adapters/{t}"][f"{LAYER}.down"].astype(float) for t in (0, 1)]
    # dW_t has two equal rows; each input is weighted as in the first factor's merge.
    one, two = downs[0] * 1, downs[1] * 4
    shares = np.array([10 / 100, 0, 1])
    expected = shares * one + (1 - shares) * two
    np.testing.assert_allclose(up @ down, [*expected] * 2, rtol=1e-6)


def test_the_current_task_counts_from_its_first_round_on():
    server = strategy()
    first = ({0: update(values=1)}, True)

    def merged(*rounds):
        down, up = merged_layer(played(server, *rounds), OTHER)
        return up @ down

    np.testing.assert_allclose(
        merged(first),
        np.ones((2, 1)) @ played(server, first)["adapters/0"][f"{OTHER}.down"],
        rtol=1e-6,
    )
    second = ({0: update(values=5, seed=3)}, False)
    assert not np.allclose(merged(first), merged(first, second))
    np.testing.assert_allclose(
        merged(first, second), merged(first, (second[0], True)), rtol=1e-6
    )


# ---------------------------------------------------------------- what is sent


def test_finished_tasks_are_sent_once_and_again_to_a_client_that_lost_its_memory():
    server = strategy()
    state = played(server, ({0: update(), 1: update()}, True), ({0: update()}, True))

    def sent(state, client):
        groups = server.send(state, stage(3), client)
        return sorted(g for g in groups if g.split("/")[-1].isdigit())

    everything = ["adapters/0", "adapters/1", "grams/0", "grams/1"]
    # What a round's end has made is not known to those who took part in it.
    assert sent(state, 0) == ["adapters/1", "grams/1"]
    assert sent(state, 1) == sent(state, 2) == everything
    assert sent(server.on_state_lost(state, 0), 0) == everything
    later = server.combine(state, stage(3), {2: update()})
    assert sent(later, 2) == []


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, "one without LoRA"),
        ({"body.w": np.zeros(1)}, "one that shares body.w"),
        ({f"{LAYER}.down": np.zeros((1, 3))}, f"one that shares {LAYER}.up"),
    ],
)
def test_a_model_that_shares_anything_else_is_refused(more, named):
    head = {n: t for n, t in model().items() if n.startswith("heads")}

    with pytest.raises(ConfigError, match=f"model.name: got '{named}', expected lora-"):
        strategy().init({**head, **more})


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (update(grams={LAYER: f32(1, -1e-9, 2)}), "expected squares, which are at"),
        (update(grams={LAYER: f32(1, np.nan, 2)}), "expected squares"),
        (update(grams={"tokens": np.asarray(-1)}), "tokens: expected 0 to 65536 an"),
        (update(grams={"tokens": np.asarray(2**17 + 1)}), "got 131073 of 2"),
        (update(grams={"head": f32(-1, 0, 1)}), "head: expected squares on the diag"),
        (update(grams={"head": f32(1, 0, -1e-3)}), "head: expected squares on the d"),
        (update(grams={"head": f32(1, np.nan, 1)}), "head: expected squares on the d"),
        (update(grams={"head": f32(1, np.inf, 1)}), "head: expected squares on the d"),
        (update(grams={"head": f32(1, 1.1, 1)}), "head: expected a positive semidef"),
        (update(grams={"head": f32(0, 1, 0)}), "head: expected a positive semidef"),
        (
            update(grams={"head": np.eye(FEATURES, dtype=np.float32)}),
            "head: expected float32 of shape",
        ),
        (update(heads={"classes": np.array([[0, 1]])}), "expected 1 to 4 integers"),
        (update(classes=()), "expected 1 to 4 integers|int64"),
        (update(heads={"classes": np.zeros(0, np.int64)}), "expected 1 to 4 integers"),
        (update(heads={"classes": np.array([1, 0])}), "expected ascending places"),
        (update(heads={"classes": np.array([1, 1])}), "expected ascending places"),
        (update(heads={"classes": np.array([-1, 1])}), "expected ascending places"),
        (update(heads={"classes": np.array([0, 4])}), "expected ascending places"),
        (update(heads={"classes": np.array([0])}), r"expected float32 of shape \(1, 2"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(sent, complaint):
    server = strategy()
    with pytest.raises(WireError, match=complaint):
        server.check_update(server.init(model()), sent)


def test_a_gram_matrix_of_few_samples_is_taken():
    server = strategy()
    features = np.float32([[0.1, 0.3]])
    sent = update(grams={"head": upper_half(features.T @ features)})

    server.check_update(server.init(model()), sent)
    server.check_update(
        server.init(model()), update(grams={"head": np.zeros(3, np.float32)})
    )


def test_fresh_factors_follow_from_seed_and_task():
    def drawn(seed, tasks):
        ends = [({0: update()}, True)] * tasks
        return played(strategy(seed), *ends)["adapters/now"][f"{LAYER}.down"]

    np.testing.assert_array_equal(drawn(0, 1), drawn(0, 1))
    assert (drawn(0, 1) != drawn(0, 0)).all()
    assert (drawn(0, 1) != drawn(1, 1)).all()


def test_each_task_starts_with_the_second_factor():
    # A task of one round, so that turns counted over the run would be wrong.
    state = played(strategy(), ({0: update()}, True))

    assert trained_factor(state) == ".up"
    assert int(state["meta/task"]["finished"]) == 1
    assert not state["adapters/now"][f"{LAYER}.up"].any()
    assert not state["meta/task"]["classes"].any()
    assert int(state["grams/now"]["tokens"]) == 0


def test_a_client_is_told_whose_turn_it_is_by_the_state_alone():
    server = strategy()
    state = played(server, ({0: update()}, False))

    # The same round again, or a later one, of which the client missed some.
    for number in (2, 2, 9):
        sent = server.send(state, stage(number), client=3)
        assert trained_factor(sent) == ".down"


def test_rounds_are_counted_that_were_aggregated_and_not_those_of_the_run():
    server = strategy()
    state, turns = server.init(model()), []
    for number, factor in ((2, ".up"), (4, ".down"), (6, ".up")):
        turns.append(trained_factor(state))
        state = server.combine(state, stage(number), {0: update(factor)})

    assert turns == [".up", ".down", ".up"]


def test_of_one_client_all_comes_back():
    sent = update(values=0.3, classes=(1, 3))
    sent.payload["adapters"][f"{LAYER}.up"][:] = [[0.1], [-7]]

    state = played(strategy(), ({0: sent}, False))

    for name, values in sent.payload["adapters"].items():
        np.testing.assert_array_equal(state["adapters/now"][name], values)
    heads = state["heads"]
    np.testing.assert_array_equal(heads["heads.0.bias"], f32(0.5, 0.3, 0.5, 0.3))
    np.testing.assert_array_equal(
        heads["heads.0.weight"][:, 0], f32(0.5, 0.3, 0.5, 0.3)
    )
    for layer in (LAYER, OTHER):
        found, grams = state["grams/now"][layer], sent.payload["grams"][layer]
        np.testing.assert_allclose(found, grams, rtol=1e-6)


def test_the_order_of_clients_does_not_matter():
    one, two, three = (
        update(values=v, classes=c, examples=n, seed=n)
        for v, c, n in ((1, (0, 1), 5), (-2, (1, 2), 7), (9, (0, 2, 3), 1))
    )

    found = [
        played(strategy(), (dict(enumerate(order)), True))
        for order in ([one, two, three], [three, one, two])
    ]

    for group in ("adapters/0", "grams/0", "heads", "meta/known"):
        for name, tensor in found[0][group].items():
            np.testing.assert_allclose(tensor, found[1][group][name], rtol=1e-5)


def test_what_the_server_remembers_of_clients_is_not_sent():
    server = strategy()
    state = played(server, ({0: update()}, False))

    assert set(server.send(state, stage(2), 0)) == {
        *("adapters/now", "grams/now", "heads", "meta/known", "meta/task")
    }


def test_a_whole_update_is_taken():
    server = strategy()
    server.check_update(server.init(model()), update())
