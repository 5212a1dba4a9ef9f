"""FedCBDR, server half: what is asked and told, when, and what is refused."""

import numpy as np
import pytest

from fcl_flower.algorithms.base import ModelShape, Params, ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.fedavg import FedAvg
from strategies.fedcbdr import FedCbdr, FedCbdrParams

DURING = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
NEXT = TaskStage(round=3, task=1, starts_task=True, ends_task=True)


def strategy(samples=3):
    context = ServerContext(0, ModelShape(2, 4, single_head=True))
    return FedCbdr(FedCbdrParams(memory_samples=samples), context)


def base(value=0.0):
    return {"base": {"w": np.full(2, value, np.float32)}}


def answer(gram=((1, 0), (0, 1)), counts=(10, 10, 0, 0)):
    half = np.array([gram[0][0], gram[0][1], gram[1][1]], np.float64)
    return {"grams": {"half": half, "counts": np.array(counts, np.int64)}}


def test_the_model_is_fedavgs_and_only_it_is_evaluated():
    made, plain = strategy(), FedAvg(Params(), ServerContext(0))
    updates = {0: Update(base(1), 1), 1: Update(base(4), 2)}
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    for stage in (DURING, LAST):
        found = made.aggregate_train(state, stage, updates)
        expected = plain.aggregate_train(base(), stage, updates)
        np.testing.assert_array_equal(found["base"]["w"], expected["base"]["w"])
        nobody = {0: Update(base(1), 0)}
        kept = made.aggregate_train(state, stage, nobody)
        np.testing.assert_array_equal(kept["base"]["w"], [0, 0])
        if stage is LAST:
            for after in (found, kept):
                assert made.configure_train(after, LAST, 0).keys() == {"base"}


def test_clients_are_asked_before_their_last_round_of_a_task():
    made = strategy()
    state = made.init(base()["base"])
    assert made.configure_query(state, DURING, 0) is None
    assert made.configure_query(state, LAST, 0) == state
    assert made.configure_train(state, LAST, 0) == state


def test_who_has_answered_gets_the_sum_and_its_quotas():
    made = strategy(3)
    state = made.init(base()["base"])
    answers = {
        0: answer(((4, 1), (1, 3)), (9, 3, 0, 0)),
        2: answer(((1, 0), (0, 2)), (0, 6, 0, 0)),
    }
    state = made.aggregate_query(state, LAST, answers)

    sent = {client: made.configure_train(state, LAST, client) for client in (0, 1, 2)}

    assert sent[1].keys() == {"base"}
    for client, expected in ((0, [3, 1, 0, 0]), (2, [0, 2, 0, 0])):
        told = sent[client]["selection"]
        assert told["gram"].tolist() == [5, 1, 5]
        assert told["quotas"].tolist() == expected
    assert made.configure_train(state, DURING, 0).keys() == {"base"}


def test_a_client_that_is_asked_again_counts_once():
    made = strategy()
    state = made.init(base()["base"])
    for _ in range(2):
        state = made.aggregate_query(state, LAST, {0: answer()})
        told = made.configure_train(state, LAST, 0)["selection"]
    assert told["gram"].tolist() == [1, 0, 1]
    assert told["quotas"].tolist() == [1, 2, 0, 0]


def test_who_ended_earlier_in_the_task_counts_too():
    made = strategy()
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    state = made.aggregate_train(state, DURING, {0: Update(base(), 1)})
    state = made.aggregate_query(state, LAST, {1: answer()})
    told = made.configure_train(state, LAST, 1)["selection"]
    assert told["gram"].tolist() == [2, 0, 2]


def test_products_are_of_one_task_and_quotas_of_all():
    made = strategy(6)
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    state = made.aggregate_train(state, LAST, {0: Update(base(), 1)})

    new = answer(((2, 0), (0, 2)), (0, 0, 8, 8))
    state = made.aggregate_query(state, NEXT, {0: new})

    told = made.configure_train(state, NEXT, 0)["selection"]
    assert told["gram"].tolist() == [2, 0, 2]
    assert told["quotas"].tolist() == [2, 2, 1, 1]  # of equal limits the last, if any


def test_who_lost_its_memory_leaves_its_room_to_others():
    made = strategy(4)
    state = made.aggregate_query(
        made.init(base()["base"]), LAST, {0: answer(), 1: answer()}
    )
    state = made.on_state_lost(state, 1)
    told = made.configure_train(state, LAST, 0)["selection"]
    assert told["gram"].tolist() == [1, 0, 1]
    assert told["quotas"].tolist() == [2, 2, 0, 0]
    assert made.configure_train(state, LAST, 1).keys() == {"base"}
    assert state["base"]["w"].tolist() == [0, 0]


# ---- what is refused


def hostile():
    good = answer()["grams"]

    def changed(**tensors):
        return {"grams": {**good, **tensors}}

    yield "nothing", {}
    yield "no counts", {"grams": {"half": good["half"]}}
    yield "another group", {**answer(), "base": {}}
    yield "too long", changed(half=np.ones(4))
    yield "float32", changed(half=good["half"].astype(np.float32))
    yield "a class too many", changed(counts=np.ones(5, np.int64))
    yield "no number", changed(half=np.array([1, np.nan, 1]))
    yield "infinite", changed(half=np.array([np.inf, 0, 1]))
    yield "no sum of squares", changed(half=np.array([-1.0, 0, 1]))
    yield "no sum of products", changed(half=np.array([1.0, 2, 1]))
    yield "a negative number", changed(counts=np.array([1, -1, 0, 0]))
    yield "a huge number", changed(counts=np.array([1, 2**40, 0, 0]))


@pytest.mark.parametrize(("label", "reply"), [*hostile()])
def test_an_answer_that_no_samples_have_is_refused(label, reply):
    made = strategy()
    state = made.init(base()["base"])
    made.check_query_reply(state, answer())
    made.check_query_reply(state, answer(((0, 0), (0, 0)), (0, 0, 0, 0)))
    made.check_query_reply(state, answer(((1, 1), (1, 1))))
    with pytest.raises(WireError):
        made.check_query_reply(state, reply)


@pytest.mark.parametrize(
    "payload", [{}, {"base": {}}, {**base(), "memory": {}}, {"base": {"w": np.ones(2)}}]
)
def test_an_update_that_is_no_model_is_refused(payload):
    made = strategy()
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    made.check_update(state, Update(base(), 1))
    with pytest.raises(WireError):
        made.check_update(state, Update(payload, 1))
