"""DOLFIN, server half: what is asked, what travels, what is refused."""

import numpy as np
import pytest

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import SparseArray, TaskStage, Update
from strategies.analytic.sums import symmetric, upper_half
from strategies.dolfin import Dolfin, DolfinParams, factors_of

CLASSES, FEATURES, INPUTS, OUTPUTS, RANK = 4, 2, 6, 3, 2
KEYS, VALUES, LATER = (f"body.adapters.{place}" for place in (0, 1, 2))
PAIRS = (KEYS, LATER)
LAYERS = [f"body.adapters.{place}" for place in range(4)]
HEAD = {"heads.0.weight": (CLASSES, FEATURES), "heads.0.bias": (CLASSES,)}


def model(layers=4, **shapes):
    """Return changed layers of rank 2, (6 to 3), and a head."""
    found = dict(HEAD)
    for place in range(layers):
        found[f"body.adapters.{place}.down"] = (RANK, INPUTS)
        found[f"body.adapters.{place}.up"] = (OUTPUTS, RANK)
    return {n: np.full(s, 0.5, np.float32) for n, s in {**found, **shapes}.items()}


def strategy(**params):
    return Dolfin(DolfinParams(**params), ServerContext(0))


def stage(number=1, ends=False):
    return TaskStage(number, 0, starts_task=number == 1, ends_task=ends)


def rows(seed, count=20, width=2):
    """Return what enters a layer, shape (tokens, inputs), of less than full rank."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) @ rng.normal(size=(width, INPUTS))


def answer(x, classes=(0, 1), later=None, **changed):
    """Return a client's answer; ``x`` and ``later`` enter the two pairs of layers."""
    entered = {KEYS: x, LATER: x if later is None else later}
    grams = {
        pair: upper_half(found.T @ found / max(len(found), 1)).astype(np.float32)
        for pair, found in entered.items()
    }
    told = np.isin(np.arange(CLASSES), classes).astype(np.uint8)
    grams |= {"tokens": np.asarray(len(x)), **changed}
    return {"grams": grams, "meta/classes": {"classes": told}}


def update(value=1.0, classes=(0, 1), examples=2, **changed):
    """Return what a client sends: constant factors, and constant rows of the head."""
    places = np.array(classes, np.int64)
    heads = {
        name: SparseArray.of_channels(np.full(shape, value, np.float32), places)
        for name, shape in HEAD.items()
    }
    ups = {f"{n}.up": np.full((OUTPUTS, RANK), value, np.float32) for n in LAYERS}
    return Update({"adapters/now": ups, "heads": heads, **changed}, examples)


def played(server, *rounds):
    """Return the state after rounds of answers, updates, and whether the task ends."""
    state = server.init(model())
    for number, (answers, updates, ends) in enumerate(rounds, 1):
        now = stage(number, ends)
        if answers:
            for one in answers.values():
                server.check_query_reply(state, one)
            state = server.aggregate_query(state, now, answers)
        for one in updates.values():
            server.check_update(state, one)
        state = server.combine(state, now, updates)
    return state


def directions_of(state, task="now", pair=KEYS):
    return state[f"directions/{task}"][f"{pair}.down"].astype(float)


# ---------------------------------------------------------------- what is asked


def test_clients_are_asked_before_a_task_and_before_its_last_round():
    server = strategy()
    start = server.init(model())
    known = server.aggregate_query(start, stage(1), {0: answer(rows(0))})

    assert server.configure_query(start, stage(1), 0) is not None
    assert server.configure_query(known, stage(2), 0) is None
    assert server.configure_query(known, stage(2, ends=True), 0) is not None
    # Nobody has answered: the next round asks anew, whoever takes part in it.
    assert server.configure_query(start, stage(2), 5) is not None
    # One who joins later is not asked any more: all have this A in common.
    late = TaskStage(2, 0, starts_task=True, ends_task=False)
    assert server.configure_query(known, late, 5) is None


def test_a_question_has_the_model_that_is_then_trained():
    server = strategy()
    state = played(server, ({0: answer(rows(0))}, {0: update()}, True))

    question = server.configure_query(state, stage(2), 1)
    sent = server.send(state, stage(2), 1)

    assert question.keys() == sent.keys() - {"heads", "meta/known"}
    assert all(question[group] is sent[group] for group in question)
    assert {"adapters/0", "directions/0"} <= question.keys()


# ---------------------------------------------------------------- A and M


def test_any_split_over_clients_in_any_order_gives_what_one_client_would():
    server = strategy(energy=0.5)
    x, later = rows(0, 30, INPUTS), rows(1, 30, INPUTS)
    one = {0: answer(x, later=later)}
    parts = np.split(np.arange(30), [3, 11])
    several = [answer(x[p], later=later[p]) for p in parts]

    states = [
        played(server, (answers, {0: update()}, True))
        for answers in (
            one,
            dict(enumerate(several)),
            dict(enumerate(reversed(several))),
        )
    ]

    for pair in PAIRS:
        whole, *split = (directions_of(state, "0", pair) for state in states)
        free, *others = (np.asarray(state["subspace"][pair]) for state in states)
        for down, basis in zip(split, others, strict=True):
            np.testing.assert_allclose(down.T @ down, whole.T @ whole, atol=1e-6)
            np.testing.assert_allclose(basis @ basis.T, free @ free.T, atol=1e-6)


def test_the_changes_of_a_task_leave_alone_what_entered_in_earlier_ones():
    server = strategy(energy=0.999)
    one, two = rows(0), rows(1, width=INPUTS)
    state = played(
        server,
        ({0: answer(one)}, {0: update(3)}, True),
        ({0: answer(two)}, {0: update(5)}, True),
    )

    down, up = factors_of(state, VALUES)["1"]
    assert np.abs(up @ down @ two.T).max() > 0.1
    assert np.abs(up @ down @ one.T).max() < 1e-5 * np.abs(one).max()
    old, first = factors_of(state, VALUES)["0"]
    assert np.abs(first @ old @ one.T).max() > 0.1


def test_the_inputs_before_the_last_round_count_for_later_tasks():
    first, last = rows(0), rows(7)
    server = strategy(energy=0.999)
    state = played(
        server,
        ({0: answer(first)}, {0: update()}, False),
        ({0: answer(last)}, {0: update()}, True),
    )

    free = np.asarray(state["subspace"][KEYS])
    assert np.abs(last @ free).max() < 1e-4
    assert np.abs(first @ free).max() > 0.1
    # A is that of before the task; both pairs of layers have their own.
    down = directions_of(state, "0")
    _, _, right = np.linalg.svd(first)
    np.testing.assert_allclose(
        3 * down.T @ down, right[:RANK].T @ right[:RANK], atol=1e-5
    )
    assert "grams" not in state


def test_a_task_of_one_round_needs_one_answer():
    x = rows(0)
    state = played(strategy(energy=0.999), ({0: answer(x)}, {0: update()}, True))

    assert directions_of(state, "0").any()
    assert np.abs(x @ state["subspace"][KEYS]).max() < 1e-4


def test_without_an_answer_before_the_last_round_all_stays_free():
    state = played(
        strategy(),
        ({0: answer(rows(0))}, {0: update()}, False),
        ({}, {0: update()}, True),
    )

    np.testing.assert_array_equal(state["subspace"][KEYS], np.eye(INPUTS))


def test_clients_without_tokens_tell_of_no_directions():
    server = strategy()
    state = server.aggregate_query(
        server.init(model()), stage(1, True), {0: answer(rows(0)[:0])}
    )

    assert not directions_of(state).any()
    assert server.configure_query(state, stage(2), 0) is not None
    ended = server.combine(state, stage(1, True), {0: update()})
    np.testing.assert_array_equal(ended["subspace"][KEYS], np.eye(INPUTS))


def test_energy_grows_by_its_step_and_ends_at_one():
    x = np.diag([4.0, 3.0, 2.0, 1.0, 0.5, 0.0])  # shares .53 .30 .13 .03 .01 0
    found = []
    server = strategy(energy=0.5, energy_step=0.3)
    rounds = []
    for _ in range(3):
        rounds.append(({0: answer(x)}, {0: update()}, True))
        found.append(played(server, *rounds)["subspace"][KEYS].shape[1])

    assert found == [5, 4, 1]
    shares = strategy().report(played(server, *rounds), stage(3), {})
    assert shares == pytest.approx(
        dict.fromkeys((f"subspace/{p}" for p in PAIRS), 5 / 6)
    )


# ---------------------------------------------------------------- averages


def test_second_factors_are_averaged_by_examples_and_rows_by_who_learned_them():
    sent = {
        0: update(1, classes=(0, 1), examples=10),
        1: update(4, classes=(1, 2), examples=30),
    }

    state = played(strategy(), ({}, sent, False))

    for layer in LAYERS:
        np.testing.assert_allclose(state["adapters/now"][f"{layer}.up"], 3.25)
    np.testing.assert_allclose(state["heads"]["heads.0.bias"], [1, 3.25, 4, 0.5])
    np.testing.assert_allclose(
        state["heads"]["heads.0.weight"], [[1, 1], [3.25, 3.25], [4, 4], [0.5, 0.5]]
    )
    assert state["meta/known"]["classes"].tolist() == [1, 1, 1, 0]


def test_averaging_the_second_factor_averages_the_changes_themselves():
    rng = np.random.default_rng(0)
    ups = rng.normal(size=(3, OUTPUTS, RANK)).astype(np.float32)
    counts = [1, 5, 2]
    sent = {k: update(examples=n) for k, n in enumerate(counts)}
    for k, up in enumerate(ups):
        sent[k].payload["adapters/now"][f"{KEYS}.up"] = up

    state = played(strategy(), ({0: answer(rows(0))}, sent, False))

    down, up = factors_of(state, KEYS)["now"]
    own = [n / 8 * one.astype(float) @ down for n, one in zip(counts, ups, strict=True)]
    np.testing.assert_allclose(up @ down, np.sum(own, 0), atol=1e-6)


def test_classes_of_the_task_are_those_that_clients_have_told_of_or_sent():
    server = strategy()
    asked = server.aggregate_query(
        server.init(model()),
        stage(1),
        {0: answer(rows(0), (0,)), 1: answer(rows(1), (3,))},
    )
    assert asked["meta/task"]["classes"].tolist() == [1, 0, 0, 1]
    assert asked["meta/known"]["classes"].tolist() == [0, 0, 0, 0]

    sent = server.combine(asked, stage(1), {2: update(classes=(2,))})
    assert sent["meta/task"]["classes"].tolist() == [1, 0, 1, 1]
    assert sent["meta/known"]["classes"].tolist() == [0, 0, 1, 0]

    ended = server.combine(asked, stage(2, True), {2: update(classes=(2,))})
    assert not ended["meta/task"]["classes"].any()


def test_a_task_begins_without_any_change():
    server = strategy()
    for state in (
        server.init(model()),
        played(server, ({0: answer(rows(0))}, {0: update()}, True)),
    ):
        for group in ("adapters/now", "directions/now"):
            assert not any(tensor.any() for tensor in state[group].values())


def test_finished_tasks_are_sent_once_and_again_to_a_client_that_lost_its_memory():
    server = strategy()
    first = ({0: answer(rows(0))}, {0: update(), 1: update()}, True)
    state = played(server, first, ({0: answer(rows(1))}, {0: update()}, True))

    def sent(state, client):
        groups = server.send(state, stage(3), client)
        return sorted(g for g in groups if g.split("/")[-1].isdigit())

    everything = ["adapters/0", "adapters/1", "directions/0", "directions/1"]
    assert sent(state, 0) == ["adapters/1", "directions/1"]
    assert sent(state, 1) == sent(state, 2) == everything
    assert sent(server.on_state_lost(state, 0), 0) == everything


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "shapes",
    [
        {f"{VALUES}.down": (RANK, INPUTS + 1)},
        {"body.adapters.4.down": (RANK, INPUTS), "body.adapters.4.up": (3, RANK)},
        {"body.first.down": (RANK, INPUTS), "body.first.up": (3, RANK)},
    ],
)
def test_layers_that_do_not_have_their_inputs_in_pairs_are_refused(shapes):
    with pytest.raises(ConfigError, match=r"model\.layers: got 'layers with different"):
        strategy().init(model(**shapes))


def not_squares(value):
    half = upper_half(np.eye(INPUTS)).astype(np.float32)
    half[0] = value
    return {LATER: half}


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (answer(rows(0), **{"tokens": np.asarray(-1)}), "tokens: expected 0 to"),
        (answer(rows(0), **{"tokens": np.asarray(2**41)}), "tokens: expected 0 to"),
        (answer(rows(0), **not_squares(-1)), f"grams/{LATER}: expected squares"),
        (answer(rows(0), **not_squares(np.nan)), f"grams/{LATER}: expected squares"),
        (answer(rows(0), **not_squares(np.inf)), f"grams/{LATER}: expected squares"),
        (
            answer(
                rows(0), **{KEYS: upper_half(np.ones((6, 6)) - np.eye(6)).astype("f4")}
            ),
            f"grams/{KEYS}: expected a positive semidefinite matrix",
        ),
        (answer(rows(0), **{KEYS: np.zeros(3, np.float32)}), "expected float32 of sh"),
        ({"grams": answer(rows(0))["grams"]}, "expected"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(reply, complaint):
    server = strategy()
    with pytest.raises(WireError, match=complaint):
        server.check_query_reply(server.init(model()), reply)


def sparse(name, indices):
    shape = HEAD[name]
    where = np.array(indices, np.int64)
    values = np.ones(len(where), np.float32)
    return SparseArray(shape, where, values)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"adapters/now": {}}, "adapters/now: tensors"),
        ({"heads": {}}, "heads: expected"),
        ({"more": {}}, "groups"),
        (
            {"heads": {n: np.ones(s, np.float32) for n, s in HEAD.items()}},
            "expected a sparse tensor",
        ),
        (
            {
                "heads": {
                    "heads.0.weight": sparse("heads.0.weight", [2, 3]),
                    "heads.0.bias": sparse("heads.0.bias", [0]),
                }
            },
            "weight: expected whole rows, those of the classes of heads.0.bias",
        ),
        (
            {
                "heads": {
                    "heads.0.weight": sparse("heads.0.weight", [0]),
                    "heads.0.bias": sparse("heads.0.bias", [0]),
                }
            },
            "weight: expected whole rows",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_refused(changed, complaint):
    server = strategy()
    with pytest.raises(WireError, match=complaint):
        server.check_update(server.init(model()), update(**changed))


def test_grams_keep_their_values_on_their_way():
    x = rows(0)
    grams = answer(x)["grams"]

    np.testing.assert_allclose(symmetric(grams[KEYS]), x.T @ x / len(x), rtol=1e-6)
