"""Matched ensembles, server half: who is asked, what matches, what travels to whom."""

import numpy as np
import pytest
from analytic_cases import C, D, draw, samples
from fakes import exact as plain

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ModelShape, ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.analytic.sums import exact
from strategies.matched_ensemble import MatchedEnsembleParams
from strategies.matched_ensemble.server import MatchedEnsemble

FIRST = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
LATER = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
SECOND = TaskStage(round=3, task=1, starts_task=True, ends_task=True)


def strategy(*, single=False, **params):
    context = ServerContext(0, ModelShape(D, C, single))
    return MatchedEnsemble(MatchedEnsembleParams(**params), context)


def start(made):
    return made.init({"body.weight": np.zeros((D, 2), np.float32)})


def network(value=0.0):
    return {
        "body.weight": np.full((D, 2), value, np.float32),
        "head.weight": np.full((C, D), value, np.float32),
        "head.bias": np.full(C, value, np.float32),
    }


def answer(classes, seed, noise=0.3):
    """Return the sums over samples of three classes out of nine."""
    h, y = draw(classes, each=60, seed=seed, noise=noise)
    h /= 2 * np.linalg.norm(h, axis=1).max()
    return {"sums": exact(h, y, C)}


def update(held=(), value=None, task=0):
    payload = {"meta": {"held": np.array(held, np.int64).reshape(-1, 2)}}
    if value is not None:
        payload[f"networks/{task}"] = network(value)
    return Update(payload, 20)


def asked(made, tasks):
    """Return the state after all tasks of that many clients have been matched.

    ``tasks`` are classes by number of the task and client.
    """
    state = start(made)
    for number, of_clients in enumerate(tasks):
        stage = TaskStage(number + 1, number, starts_task=True, ends_task=True)
        answers = {c: answer(a, 10 * number + c) for c, a in of_clients.items()}
        state = made.aggregate_query(state, stage, answers)
    return state


def finished(made, state, stage, values):
    """Return the state after clients have sent networks, of these values."""
    updates = {
        client: update([(client, stage.task)], value, stage.task)
        for client, value in values.items()
    }
    return made.combine(state, stage, updates)


def pairs(state, task):
    return {name: np.asarray(p).tolist() for name, p in state[f"same/{task}"].items()}


def sent(made, state, client, stage=SECOND):
    payload = made.send(state, stage, client)
    return sorted(group for group in payload if group.startswith("networks"))


def test_a_task_is_asked_for_until_its_sums_are_there():
    made = strategy()
    state = start(made)
    assert made.configure_query(state, FIRST, 0) == {}
    state = made.aggregate_query(state, FIRST, {0: {}, 1: answer((0, 1, 2), 1)})
    assert made.configure_query(state, LATER, 0) == {}
    assert made.configure_query(state, LATER, 1) is None
    assert made.configure_query(state, SECOND, 1) == {}
    assert made.aggregate_query(state, LATER, {0: {}}) == state


def test_without_matching_nobody_is_asked():
    made = strategy(matching="none")
    assert not made.asks
    assert made.configure_query(start(made), FIRST, 0) is None


def test_equal_classes_of_different_tasks_are_found_and_single_ones_are_not_used():
    made = strategy()
    tasks = [
        {0: (0, 1, 2), 1: (2, 0, 1), 2: (3, 4, 5)},
        {0: (6, 7, 8), 1: (5, 6, 7), 2: (1, 8, 4)},
    ]
    state = asked(made, tasks)

    assert pairs(state, "0/0") == {"1/0": [[0, 1], [1, 2], [2, 0]]}
    assert pairs(state, "1/0") == {"0/0": [[0, 2], [1, 0], [2, 1]]}
    assert pairs(state, "0/1") == {"1/1": [[0, 1], [1, 2]]}
    assert pairs(state, "1/1") == {"0/1": [[1, 0], [2, 1]]}
    # 1/1 has one class of 2/0, and 2/1 has one or none of each.
    assert pairs(state, "2/0") == pairs(state, "2/1") == {}


def test_with_a_single_head_the_same_places_are_the_same_classes():
    made = strategy(single=True)
    state = asked(made, [{0: (3, 4, 5), 1: (0, 1, 2)}])
    assert pairs(state, "0/0") == {"1/0": [[0, 0], [1, 1], [2, 2]]}
    h, y = samples(40, classes=2, width=D)
    some = {2: {"sums": exact(h, y + 1, C)}}
    state = made.aggregate_query(state, FIRST, some)
    assert pairs(state, "2/0") == {"0/0": [[1, 1], [2, 2]], "1/0": [[1, 1], [2, 2]]}


def test_whoever_claims_samples_without_end_stops_no_matching_under_a_limit():
    classes = [(0, 1, 2), (3, 4, 5), (2, 0, 1), (5, 3, 4)]
    honest = {c: answer(of, c, noise=2.0) for c, of in enumerate(classes)}
    h = np.random.default_rng(0).standard_normal((60, D))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    found = exact(h, np.arange(60) % C, C)
    lie = {"sums": {name: 2.0**30 * values for name, values in found.items()}}
    same = []
    for limit in (0.0, 2.0):
        made = strategy()
        made.aggregation = Aggregation(examples_limit=limit)
        state = made.aggregate_query(start(made), FIRST, honest)
        assert pairs(state, "0/0") == {"2/0": [[0, 1], [1, 2], [2, 0]]}
        made.check_query_reply(state, lie)
        same.append(pairs(made.aggregate_query(state, FIRST, {4: lie}), "0/0"))
    assert same == [{}, {"2/0": [[0, 1], [1, 2], [2, 0]]}]


def test_networks_go_once_to_those_whom_they_suit():
    made = strategy()
    tasks = [{0: (0, 1, 2), 1: (3, 4, 5), 2: (0, 1, 2)}, {0: (6, 7, 8), 1: (2, 1, 0)}]
    state = asked(made, tasks)
    assert sent(made, state, 0) == []
    state = finished(made, state, FIRST, {0: 1.0, 1: 2.0, 2: 3.0})

    assert sent(made, state, 0) == ["networks/2/0"]
    assert sent(made, state, 1) == ["networks/0/0", "networks/2/0"]
    payload = made.send_to_predict(state, SECOND, 1)
    assert payload["networks/2/0"] is state["networks/2/0"]
    assert payload.keys() == {"same/0", "same/1", "networks/0/0", "networks/2/0"}
    assert pairs(payload, 1) == pairs(state, "1/1")

    state = made.combine(state, SECOND, {1: update([(0, 0), (1, 0), (1, 1)], 4.0, 1)})
    assert sent(made, state, 1) == ["networks/2/0"]
    # A network that comes later is for tasks that have ended, too.
    assert sent(made, state, 0) == ["networks/1/1", "networks/2/0"]


def test_who_has_lost_everything_gets_its_own_networks_back():
    made = strategy()
    state = asked(made, [{0: (0, 1, 2), 1: (0, 1, 2)}])
    state = finished(made, state, FIRST, {0: 1.0, 1: 2.0})
    state = made.combine(state, SECOND, {0: update([(0, 0), (1, 0), (0, 1)])})
    assert sent(made, state, 0) == []
    assert sent(made, made.on_state_lost(state, 1), 0) == []
    # Of 0/1, whose sums it has not, the server keeps nothing.
    assert state["held/0"]["tasks"].tolist() == [[0, 0], [1, 0]]
    lost = made.on_state_lost(state, 0)
    assert sent(made, lost, 0) == ["networks/0/0", "networks/1/0"]


def test_a_network_that_has_not_come_is_asked_for_and_taken_once():
    made = strategy()
    state = asked(made, [{0: (0, 1, 2), 1: (0, 1, 2)}, {0: (6, 7, 8)}])
    state = finished(made, state, FIRST, {1: 2.0})
    told = made.send(state, SECOND, 0)
    assert told["meta"]["missing"].tolist() == [0]
    assert "meta" not in made.send(state, SECOND, 1)

    both = update([(0, 0), (0, 1)], 1.0, 0)
    both.payload["networks/1"] = network(3.0)
    late = Update(both.payload, 20, stage=SECOND)
    state = made.combine(state, FIRST, {0: late})
    values = {
        g: a["head.bias"][0] for g, a in state.items() if g.startswith("networks")
    }
    assert values == {"networks/0/0": 1, "networks/0/1": 3, "networks/1/0": 2}
    assert "meta" not in made.send(state, SECOND, 0)

    # What has ended is not changed any more; what goes on is.
    again = update([(0, 0), (0, 1)], 7.0, 0)
    again.payload["networks/1"] = network(8.0)
    for stage, of_update in ((SECOND, None), (FIRST, SECOND)):
        sent_again = Update(again.payload, 20, stage=of_update)
        found = made.combine(state, stage, {0: sent_again})
        values = {
            g: a["head.bias"][0] for g, a in found.items() if g.startswith("networks")
        }
        assert values == {"networks/0/0": 1, "networks/0/1": 8, "networks/1/0": 2}


def test_a_network_of_a_task_without_sums_is_not_kept():
    made = strategy()
    state = finished(made, start(made), FIRST, {0: 1.0})
    assert state.keys() == {"base", "held/0"}


def test_what_is_reported():
    made = strategy()
    assert made.report(start(made), FIRST, {}) == {
        "networks": 0,
        "same_classes": 0,
    }
    state = asked(made, [{0: (0, 1, 2), 1: (2, 7, 1), 2: (2, 1, 0)}])
    state = finished(made, state, FIRST, {1: 1.0})
    assert made.report(state, FIRST, {}) == {
        "networks": 1,
        "same_classes": 2 + 3 + 2,
    }


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({"sum": {}}, r"groups \['sum'\]: expected sums alone"),
        ({**answer((0, 1, 2), 0), "more": {}}, "expected sums alone"),
        ({"sums": {"cross": np.zeros((C, D + 1))}}, r"sums: tensors \['gram'\]"),
        ({"sums": exact(*samples(40, width=D - 1), 4)}, "sums/cross: expected"),
    ],
)
def test_a_hostile_reply_is_refused(reply, why):
    made = strategy()
    with pytest.raises(WireError, match=why):
        made.check_query_reply(start(made), reply)


def test_an_honest_reply_and_update_are_taken():
    made = strategy()
    state = start(made)
    made.check_query_reply(state, {})
    made.check_query_reply(state, answer((0, 1, 2), 0))
    made.check_update(state, update([(0, 0)], 1.0))
    made.check_update(state, update())


def held(values, dtype=np.int64):
    return {"meta": {"held": np.array(values, dtype)}}


HELD = held([[0, 0]])


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({**HELD, "networks": network()}, "expected meta and networks"),
        ({**HELD, "networks/-1": network()}, "expected meta and networks"),
        ({**HELD, "networks/0/0": network()}, "expected meta and networks"),
        (held([0, 0]), r"got int64 of shape \(2,\), expected int64 of at most 65536"),
        (held([[0, 0, 0]]), r"got int64 of shape \(1, 3\)"),
        (held([[0, 0]] * (2**16 + 1)), r"got int64 of shape \(65537, 2\), expected"),
        (held(np.zeros((0, 3))), r"of shape \(0, 3\)"),
    ],
)
def test_a_hostile_update_is_refused(payload, why):
    made = strategy()
    with pytest.raises(WireError, match=why):
        made.check_update(start(made), Update(payload, 1))


def test_the_heads_of_the_first_network_are_no_part_of_a_network():
    made = strategy(single=True)
    body = {"body.weight": np.zeros((D, 2), np.float32)}
    state = made.init({**body, "heads.0.bias": np.zeros(C, np.float32)})
    made.check_update(state, update([(0, 0)], 1.0))


def test_what_came_is_matched_in_one_order_whoever_answers_first():
    made = strategy()
    answers = {c: answer(a, c) for c, a in enumerate([(0, 1, 2), (2, 1, 0), (0, 4, 1)])}
    together = made.aggregate_query(start(made), FIRST, answers)
    state = start(made)
    for client in (2, 0, 1):
        one = {client: answers[client]}
        state = made.aggregate_query(state, FIRST, one)
    assert plain(dict(sorted(state.items()))) == plain(dict(sorted(together.items())))
