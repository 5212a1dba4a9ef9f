"""The analytic server: sums by client, task and data, in whatever order they come."""

import itertools

import numpy as np
import pytest
from analytic_cases import CLASSES, WIDTH, C, D, draw, samples
from fakes import exact as plain
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ModelShape, ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.analytic import AnalyticParams, heads
from strategies.analytic.server import SOLVED, Analytic
from strategies.analytic.sums import exact, gram

TRAIN = {"penalty": 0.1}


def server(*, single_head=True, **params):
    shape = ModelShape(WIDTH, CLASSES, single_head)
    return Analytic(AnalyticParams(**params), ServerContext(0, shape))


def stage(task=0, number=1):
    return TaskStage(number, task, starts_task=True, ends_task=True)


def update(h, y, data=1, valid=None, form=exact):
    payload = {
        "meta": {"data": np.asarray(data, np.uint64)},
        "sums": form(h, y, CLASSES),
    }
    if valid is not None:
        payload["valid"] = form(*valid, CLASSES)
    return Update(payload, len(y))


def state_of(made, contributions):
    """Return the state after ``(client, task, update)``, one after the other."""
    state = made.init({})
    for client, task, sent in contributions:
        made.check_update(state, sent)
        state = made.combine(state, stage(task), {client: sent})
    return state


@given(
    data=st.data(),
    owners=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=12, max_size=40
    ),
    kind=st.sampled_from(["discriminant", "ridge"]),
)
@settings(max_examples=40, deadline=None)
def test_the_head_is_that_of_all_samples_whoever_has_them(data, owners, kind):
    h, y = samples(len(owners), seed=len(owners))
    parts = [
        (client, task, [i for i, owner in enumerate(owners) if owner == (client, task)])
        for client, task in sorted(set(owners))
    ]
    sent = [(c, t, update(h[rows], y[rows])) for c, t, rows in parts]
    # Some come twice, and all in any order.
    again = data.draw(st.lists(st.sampled_from(sent), max_size=4))
    arriving = data.draw(st.permutations(sent + again))
    made = server(head=kind, penalty=0.1)
    state = state_of(made, arriving)
    head = state["head"]
    if kind == "ridge":
        centred = h - h.mean(0)
        alpha = 0.1 * np.trace(centred.T @ centred) / WIDTH
        theirs = Ridge(alpha=alpha).fit(h, np.eye(CLASSES)[y])
        known = np.unique(y)
    else:
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1)
        counts = np.bincount(y, minlength=CLASSES)
        if (counts > 0).sum() < 3 or (counts == 1).any():
            return  # scikit-learn has one row for two classes, and warns of one sample
        theirs.fit(h, y)
        known = theirs.classes_
    weights = theirs.coef_[known] if kind == "ridge" else theirs.coef_
    error = np.linalg.norm(head["weight"][known] - weights)
    assert error / np.linalg.norm(weights) < 1e-9
    # To the last bit it does not matter in what order they came, or how often.
    assert plain(state) == plain(state_of(made, sent))


def test_clients_of_one_round_count_as_those_of_several():
    made, parts = server(**TRAIN), [samples(12, seed) for seed in range(3)]
    sent = {client: update(*part) for client, part in enumerate(parts)}
    together = made.combine({}, stage(), sent)
    assert plain(together) == plain(
        state_of(made, [(c, 0, u) for c, u in sent.items()])
    )


def test_an_update_counts_for_the_task_that_was_asked_for():
    made, one = server(**TRAIN), update(*samples(12))
    late = Update(one.payload, 12, stage=stage(task=1))
    state = made.combine({}, stage(task=4), {0: late})
    assert f"sums/0/1/{1:016x}" in state


def test_other_data_of_the_same_task_are_added():
    made, (h, y) = server(**TRAIN), samples(30)
    state = state_of(
        made, [(0, 0, update(h[:14], y[:14], 1)), (0, 0, update(h[14:], y[14:], 2))]
    )
    whole = state_of(made, [(0, 0, update(h, y, 1))])
    np.testing.assert_allclose(
        state["head"]["weight"], whole["head"]["weight"], rtol=1e-9
    )


def claimed(times, **limit):
    """Return the state where one of five tasks of noise claims so many times its size.

    Of the other four two and two have the same three classes.
    """
    made = Analytic(AnalyticParams(penalty=0.1), ServerContext(0, ModelShape(D, C)))
    made.aggregation = Aggregation(**limit)
    sent = []
    for client, classes in enumerate([(0, 1, 2), (3, 4, 5), (2, 0, 1), (5, 3, 4)]):
        h, y = draw(classes, each=20, seed=client)
        payload = {"sums": gram(h / 15, y, C)}
        payload["meta"] = {"data": np.asarray(1, np.uint64)}
        sent.append((client, 0, Update(payload, len(y))))
    h, y = draw((6, 7, 8), each=20, noise=1000.0)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    payload = {"sums": {n: times * a for n, a in gram(h, y, C).items()}}
    payload["meta"] = {"data": np.asarray(1, np.uint64)}
    return state_of(made, [*sent, (4, 0, Update(payload, len(y)))])


def test_whoever_claims_samples_without_end_decides_for_nobody_under_a_limit():
    same = {
        (times, limit): int(
            claimed(times, examples_limit=limit)[SOLVED]["same_classes"]
        )
        for times in (1, 2**30)
        for limit in (0, 2)
    }
    assert same == {(1, 0): 6, (1, 2): 6, (2**30, 0): 0, (2**30, 2): 6}


def test_a_limit_is_one_of_a_task_whenever_its_samples_come():
    """Here a median of 20 samples; 200 came in two parts, some of them validate."""
    h, y = samples(200)
    once = [(c, 0, update(*samples(20, c + 1))) for c in range(2)]
    parts = [(2, 0, update(h[:50], y[:50], 1, valid=(h[50:80], y[50:80])))]
    parts.append((2, 0, update(h[80:], y[80:], 2)))
    made = server()
    made.aggregation = Aggregation(examples_limit=2)
    found = state_of(made, [*once, *parts])[SOLVED]["samples"]
    assert found == pytest.approx(20 + 20 + 2 * 20)
    assert state_of(server(), [*once, *parts])[SOLVED]["samples"] == 240


def test_an_update_without_news_leaves_the_state_as_it_is():
    made = server(**TRAIN)
    state = state_of(made, [(0, 0, update(*samples(12)))])
    assert made.combine(state, stage(), {0: Update({}, 12)}) is state
    made.check_update(state, Update({}, 12))


def test_validation_samples_choose_and_then_count():
    made, train, valid = server(), samples(30), samples(40, 1)
    state = state_of(made, [(0, 0, update(*train, valid=valid))])
    assert float(state["meta/solved"]["samples"]) == 70
    fixed = server(penalty=float(state["meta/solved"]["penalty"]))
    h, y = (np.concatenate(pair) for pair in zip(train, valid, strict=True))
    same = state_of(fixed, [(0, 0, update(h, y))])
    np.testing.assert_allclose(
        state["head"]["weight"], same["head"]["weight"], rtol=1e-9
    )


def test_what_travels_down_is_the_head_alone_in_single_precision():
    made = server(**TRAIN)
    assert made.send(made.init({}), stage(), 0) == {}
    state = state_of(made, [(0, 0, update(*samples(12)))])
    sent = made.send(state, stage(), 3)
    assert sent.keys() == {"head"}
    assert {a.dtype.name for a in sent["head"].values()} == {"float32"}
    np.testing.assert_allclose(sent["head"]["weight"], state["head"]["weight"], 1e-6)


def test_with_a_head_for_each_task_a_client_gets_its_own():
    made = server(single_head=False, **TRAIN)
    state = state_of(
        made,
        [
            (client, task, update(*samples(12, 3 * client + task)))
            for client, task in itertools.product(range(3), range(2))
        ],
    )
    for client in range(3):
        sent = made.send(state, stage(), client)
        assert sent.keys() == {"head/0", "head/1"}
        for task in range(2):
            np.testing.assert_allclose(
                sent[f"head/{task}"]["weight"],
                state[f"head/{client}/{task}"]["weight"],
                1e-6,
            )
    assert made.send(state, stage(), 11) == {}


def test_the_record_says_what_was_solved():
    made = server(**TRAIN)
    assert made.report({}, stage(), {}) == {}
    state = state_of(made, [(0, 0, update(*samples(12)))])
    assert made.report(state, stage(), {}) == {
        "penalty": 0.1,
        "samples": 12,
        "same_classes": 0,
    }
    assert made.remarks()


def test_of_several_penalties_the_record_has_the_median(monkeypatch):
    monkeypatch.setattr(heads, "chosen", lambda *given: [0.1, 0.9, 0.2])
    made, updates = server(single_head=False), {}
    for client in range(3):
        sent = update(*samples(12, client), valid=samples(12, client + 9))
        updates[client] = sent
    state = made.combine({}, stage(), updates)
    assert made.report(state, stage(), {})["penalty"] == 0.2


# ---------------------------------------------------------------- forgetting


CONTRIBUTIONS = [
    (client, task, update(*samples(15, 2 * client + task), data=2 * client + task))
    for client, task in itertools.product(range(3), range(2))
]


@pytest.mark.parametrize("params", [{"head": "ridge", **TRAIN}, TRAIN])
@pytest.mark.parametrize("task", [None, 0, 1])
def test_what_is_forgotten_was_never_there(params, task):
    made = server(**params)
    state = state_of(made, CONTRIBUTIONS)
    before = plain(state)
    left = made.forget(state, 1, task)
    never = [c for c in CONTRIBUTIONS if not (c[0] == 1 and task in (None, c[1]))]
    expected = state_of(made, never)
    assert plain(left) == plain(expected)  # far below 1e-9: to the last bit
    assert plain(state) == before
    assert not any(g.startswith(f"sums/1/{task or 0}/") for g in left)


def test_all_can_be_forgotten():
    made = server(**TRAIN)
    state = state_of(made, CONTRIBUTIONS)
    for client in range(3):
        state = made.forget(state, client, None)
    assert state == {}


def test_what_is_not_there_cannot_be_forgotten():
    made = server(**TRAIN)
    state = state_of(made, CONTRIBUTIONS)
    with pytest.raises(ConfigError, match=r"client: got 7, expected .* \[0, 1, 2\]"):
        made.forget(state, 7, None)
    with pytest.raises(ConfigError, match="task 5 of client: got 1"):
        made.forget(state, 1, 5)


# ---------------------------------------------------------------- what is refused


def test_forged_validation_sums_are_refused():
    h, y = samples(12)
    forged = update(h, y, valid=(h * 9, y), form=gram)
    with pytest.raises(WireError, match="valid/"):
        server().check_update({}, forged)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"penalty": 2.0}, "strategy.penalty: got 2.0, expected 0, or 1e-06 to 1"),
        ({"penalty": 1e-9}, "strategy.penalty: got 1e-09"),
        ({"penalty": 1e9, "head": "ridge"}, "expected 0, or 1e-06 to 1e"),
    ],
)
def test_a_penalty_out_of_range_is_refused(params, complaint):
    with pytest.raises(ValueError, match=complaint.replace("+", r"\+")):
        AnalyticParams(**params)
