"""FedCBDR: leverage, the balanced loss, quotas, the server's questions, and a run."""

from collections import Counter

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    SECOND,
    THIRD,
    check_loss,
    data,
    features_of,
    logits_of,
    model,
    moved,
    place,
    softmax,
    start,
)
from fakes import rounds_of, run_in_process, tiny
from queries import hostile_and_absent
from watched_fit import Watched

from clients.fedcbdr import FedCbdr
from fcl_flower.algorithms.base import ModelShape, Params, ServerContext, Turn
from fcl_flower.algorithms.exemplars import leverage_scores
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.analytic.sums import upper_half
from strategies.fedavg import FedAvg
from strategies.fedcbdr import FedCbdr as Server
from strategies.fedcbdr import FedCbdrParams, evenly, in_proportion, quotas


def learner(client=0, where=None, **params):
    return FedCbdr(FedCbdrParams(**params), model(), where or place(client))


def selection(gram, quotas):
    return {"gram": upper_half(gram), "quotas": np.array(quotas, np.int64)}


def coordinated(one, stage, task, quotas, received=None, state=None, count=20):
    """Train in a task's last round, as a server with this client alone would ask."""
    received = received or start()
    answer = one.answer_query(Turn({}, received, stage, data(task, count)))["grams"]
    told = {"gram": answer["half"], "quotas": np.array(quotas, np.int64)}
    sent = {**received, "selection": told}
    return one.train(Turn(state or {}, sent, stage, data(task, count)))


def test_leverage_needs_no_features_of_others_but_their_products():
    # As in the paper: each client turns its samples by a matrix of its own, and all
    # features by one in common; the server sees these alone.
    rng = np.random.default_rng(0)
    some = rng.normal(size=(6, 8))  # so that two directions no feature has
    clients = [rng.normal(size=(n, 6)) @ some for n in (9, 4, 12)]

    def turning(size):
        return np.linalg.qr(rng.normal(size=(size, size)))[0]

    turns, common = [turning(len(x)) for x in clients], turning(8)
    sent = [turn @ x @ common for turn, x in zip(turns, clients, strict=True)]
    u, values, _ = np.linalg.svd(np.concatenate(sent), full_matrices=False)
    rank = (values > 1e-9 * values[0]).sum()
    rows = np.split(u[:, :rank], np.cumsum([9, 4])[:2])

    gram = sum(x.T @ x for x in clients)

    assert rank == 6
    for x, turn, row in zip(clients, turns, rows, strict=True):
        expected = np.square(turn.T @ row).sum(1)
        np.testing.assert_allclose(leverage_scores(x, gram), expected, rtol=1e-9)


def test_the_answer_is_of_the_features_of_the_model_that_is_asked_about():
    asked = moved(start())
    found = learner().answer_query(Turn({}, asked, FIRST, data(1)))["grams"]
    features = features_of(asked["base"], data(1).train.x.numpy())
    products = features.T @ features
    expected = [products[i, j] for i in range(4) for j in range(i, 4)]
    np.testing.assert_allclose(found["half"], expected, rtol=1e-5)
    labels = data(1).train.y.tolist()
    assert found["counts"].tolist() == [labels.count(c) for c in range(6)]
    assert found["half"].dtype == np.float64
    assert found["counts"].dtype == np.int64


# ---- the memory


def test_samples_are_stored_in_the_last_round_by_the_quotas():
    one = learner()
    state, update = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    assert state["memory"]["y"].tolist().count(0) == 3
    assert state["memory"]["y"].tolist().count(1) == 2
    assert sorted(state["memory"]) == ["rank", "task", "x", "y"]
    assert update.payload.keys() == {"base"}
    assert update.num_examples == 20
    during, update = one.train(Turn(state, start(), SECOND, data(1)))
    assert during["memory"] is state["memory"]
    assert update.num_examples == 25

    after, _ = coordinated(one, THIRD, 1, [2, 1, 4, 0, 0, 0], state=during)

    kept = after["memory"]
    assert [kept["y"].tolist().count(c) for c in range(4)] == [2, 1, 4, 0]
    assert kept["task"].tolist() == [0] * 3 + [1] * 4
    # The first that were drawn stay.
    assert sorted(kept["rank"][kept["y"] == 0]) == [0, 1]
    assert kept["rank"][kept["y"] == 1].tolist() == [0]
    rows = [x.tolist() for x in state["memory"]["x"]]
    assert all(x.tolist() in rows for x in kept["x"][:3])


def test_a_class_of_two_tasks_has_one_quota():
    one = learner()
    state, _ = coordinated(one, FIRST, 0, [3, 0, 0, 0, 0, 0])
    state, _ = coordinated(one, FOURTH, 0, [5, 0, 0, 0, 0, 0], state=state)
    kept = state["memory"]
    assert kept["y"].tolist() == [0] * 5
    # Those of either task that were drawn first; of equal ones the earlier task's.
    assert kept["task"].tolist() == [0] * 3 + [2] * 2
    assert sorted(kept["rank"]) == [0, 0, 1, 1, 2]


def test_without_the_servers_word_nothing_of_a_task_is_stored():
    one = learner()
    state, _ = one.train(Turn({}, start(), FIRST, data(0)))
    assert state["memory"] == {}
    state, _ = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    again, _ = one.train(Turn(state, start(), THIRD, data(1)))
    assert again["memory"] is state["memory"]


def test_a_sample_is_stored_with_the_probability_of_its_leverage():
    # Of two samples of a class each client stores one. By a client's own samples they
    # are alike, but others have many that are like the second.
    x = torch.tensor([[2.0, 0.5, -1.0], [0.3, 0.2, 0.1], [-1.0, 1.0, 1.0]])
    few = Examples(x, torch.tensor([0, 0, 1]))
    task = TaskData(few, few, few, classes=6)
    received = moved(start())
    features = features_of(received["base"], x.numpy())
    others = 20 * np.outer(features[1], features[1]) + 0.05 * np.eye(4)
    gram = features.T @ features + others
    scores = [row @ np.linalg.solve(gram, row) for row in features]
    share = scores[0] / (scores[0] + scores[1])
    sent = {**received, "selection": selection(gram, [1, 1, 0, 0, 0, 0])}

    hits = 0
    for client in range(150):
        state, _ = learner(client).train(Turn({}, sent, FIRST, task))
        hits += state["memory"]["x"][0].tolist() == x[0].tolist()

    assert 0.75 < share < 0.98
    assert hits / 150 == pytest.approx(
        share, abs=3 * (share * (1 - share) / 150) ** 0.5
    )


# ---- the loss


WEIGHTS = {"old_weight": 1.4, "new_weight": 0.6}


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("rows", [[0, 3, 5, 20, 22], [1, 2], [20, 21, 24]])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(growing, rows):
    one = learner(where=place(learning_rate=1e-12), **WEIGHTS)
    watched = Watched(one)
    if growing:
        one.model.restrict_head([0, 1])
    state, _ = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    if growing:
        one.model.restrict_head([0, 1, 2, 3])
    one.train(Turn(state, start(), SECOND, data(1)))
    now = moved(start(), 0.07)["base"]
    load(one.model, now)
    memory = state["memory"]
    x = np.concatenate([data(1).train.x.numpy(), memory["x"]])[rows]
    y = np.concatenate([data(1).train.y.numpy(), memory["y"]]).astype(int)[rows]

    def by_hand(weight):
        classes = 4 if growing else 6
        logits = logits_of({**now, "heads.0.weight": weight}, x)[:, :classes]
        scaled = logits / np.array([0.9, 0.9, 1.1, 1.1, 1.1, 1.1])[:classes]
        each = -np.log(softmax(scaled)[np.arange(len(y)), y])
        old = np.array(rows) >= 20
        total = 0.6 * each[~old].mean() if (~old).any() else 0.0
        return total + (1.4 * each[old].mean() if old.any() else 0.0)

    check_loss(watched, x, y, rows, by_hand)


@pytest.mark.parametrize(
    ("total", "limits", "expected"),
    [
        (9, [10, 10, 10], [3, 3, 3]),
        (10, [10, 10, 10], [3, 3, 4]),
        (10, [1, 10, 10], [1, 4, 5]),
        (10, [10, 0, 2], [8, 0, 2]),
        (99, [1, 2, 3], [1, 2, 3]),
        (0, [1, 2, 3], [0, 0, 0]),
    ],
)
def test_classes_have_as_many_as_they_can(total, limits, expected):
    assert evenly(total, np.array(limits)).tolist() == expected


@pytest.mark.parametrize(
    ("total", "sizes", "expected"),
    [
        (4, [10, 10], [2, 2]),
        (5, [30, 10], [4, 1]),  # 3.75 and 1.25
        (3, [10, 10], [2, 1]),
        (2, [1, 1, 1], [1, 1, 0]),
        (4, [1, 0, 3], [1, 0, 3]),
        (0, [0, 0], [0, 0]),
        (2, [2**62, 2**62], [1, 1]),
    ],
)
def test_clients_share_a_class_by_how_many_they_have(total, sizes, expected):
    assert in_proportion(total, np.array(sizes)).tolist() == expected


def test_all_classes_have_as_many_over_all_clients():
    counts = {
        4: np.array([60, 0, 3, 0]),
        1: np.array([20, 40, 0, 0]),
        7: np.array([0, 10, 0, 0]),
    }

    found = quotas(counts, 5, seed=0)  # 15 samples in all

    assert {client: shares.tolist() for client, shares in found.items()} == {
        1: [2, 5, 0, 0],
        4: [4, 0, 3, 0],
        7: [0, 1, 0, 0],
    }


def test_each_class_keeps_its_number_in_the_mean_over_clients():
    """Two clients, 3 of each class in the mean: 6 in all, of one class there are 2."""
    counts = {0: np.array([9, 3, 2, 0]), 4: np.array([0, 3, 0, 0])}
    found = quotas(counts, 0, seed=0, per_class=3)
    assert {client: part.tolist() for client, part in found.items()} == {
        0: [6, 3, 2, 0],
        4: [0, 3, 0, 0],
    }
    twice = {client: 10 * part for client, part in counts.items()}
    assert sum(quotas(twice, 0, 0, per_class=3).values()).tolist() == [6, 6, 6, 0]


def test_a_server_divides_what_its_parameters_say():
    strategy = Server(FedCbdrParams(memory_per_class=2), ServerContext(seed=0))
    state = {
        "base": {},
        "memory/grams/0": {"0": np.ones(1), "1": np.ones(1)},
        "memory/counts/0": {"0": np.array([8, 0]), "1": np.array([8, 1])},
    }
    stage = TaskStage(1, 0, starts_task=True, ends_task=True)
    sent = [strategy.send(state, stage, c)["selection"] for c in (0, 1)]
    assert [one["quotas"].tolist() for one in sent] == [[2, 0], [2, 1]]


def test_the_seed_draws_which_classes_keep_a_sample_of_too_few():
    counts = {0: np.array([9, 9, 0, 9, 9, 9]), 1: np.array([0, 3, 0, 9, 9, 9])}
    drawn = Counter()
    for seed in range(60):
        shares = sum(quotas(counts, 1, seed).values())
        assert sorted(shares) == [0, 0, 0, 0, 1, 1]
        drawn.update(np.flatnonzero(shares).tolist())
    # Two of the five that anybody has in each draw: 24 times each.
    assert sorted(drawn) == [0, 1, 3, 4, 5]
    assert min(drawn.values()) > 10


DURING = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
LAST = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
NEXT = TaskStage(round=3, task=1, starts_task=True, ends_task=True)


def strategy(samples=3):
    context = ServerContext(0, ModelShape(2, 4, single_head=True))
    return Server(FedCbdrParams(memory_samples=samples), context)


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
        found = made.combine(state, stage, updates)
        expected = plain.combine(base(), stage, updates)
        np.testing.assert_array_equal(found["base"]["w"], expected["base"]["w"])
        nobody = {0: Update(base(1), 0)}
        kept = made.combine(state, stage, nobody)
        np.testing.assert_array_equal(kept["base"]["w"], [0, 0])
        if stage is LAST:
            for after in (found, kept):
                assert made.send(after, LAST, 0).keys() == {"base"}


def test_clients_are_asked_before_their_last_round_of_a_task():
    made = strategy()
    state = made.init(base()["base"])
    assert made.configure_query(state, DURING, 0) is None
    assert made.configure_query(state, LAST, 0) == state
    assert made.send(state, LAST, 0) == state


def test_who_has_answered_gets_the_sum_and_its_quotas():
    made = strategy(3)
    state = made.init(base()["base"])
    answers = {
        0: answer(((4, 1), (1, 3)), (9, 3, 0, 0)),
        2: answer(((1, 0), (0, 2)), (0, 6, 0, 0)),
    }
    state = made.aggregate_query(state, LAST, answers)

    sent = {client: made.send(state, LAST, client) for client in (0, 1, 2)}

    assert sent[1].keys() == {"base"}
    for client, expected in ((0, [3, 1, 0, 0]), (2, [0, 2, 0, 0])):
        told = sent[client]["selection"]
        assert told["gram"].tolist() == [5, 1, 5]
        assert told["quotas"].tolist() == expected
    assert made.send(state, DURING, 0).keys() == {"base"}


def test_a_client_that_is_asked_again_counts_once():
    made = strategy()
    state = made.init(base()["base"])
    for _ in range(2):
        state = made.aggregate_query(state, LAST, {0: answer()})
        told = made.send(state, LAST, 0)["selection"]
    assert told["gram"].tolist() == [1, 0, 1]
    assert told["quotas"].tolist() == [1, 2, 0, 0]


def test_who_ended_earlier_in_the_task_counts_too():
    made = strategy()
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    state = made.combine(state, DURING, {0: Update(base(), 1)})
    state = made.aggregate_query(state, LAST, {1: answer()})
    told = made.send(state, LAST, 1)["selection"]
    assert told["gram"].tolist() == [2, 0, 2]


def test_products_are_of_one_task_and_quotas_of_all():
    made = strategy(6)
    state = made.aggregate_query(made.init(base()["base"]), LAST, {0: answer()})
    state = made.combine(state, LAST, {0: Update(base(), 1)})

    new = answer(((2, 0), (0, 2)), (0, 0, 8, 8))
    state = made.aggregate_query(state, NEXT, {0: new})

    told = made.send(state, NEXT, 0)["selection"]
    assert told["gram"].tolist() == [2, 0, 2]
    assert told["quotas"].tolist() == [2, 2, 1, 1]  # of equal limits the last, if any


def test_who_lost_its_memory_leaves_its_room_to_others():
    made = strategy(4)
    state = made.aggregate_query(
        made.init(base()["base"]), LAST, {0: answer(), 1: answer()}
    )
    state = made.on_state_lost(state, 1)
    told = made.send(state, LAST, 0)["selection"]
    assert told["gram"].tolist() == [1, 0, 1]
    assert told["quotas"].tolist() == [2, 2, 0, 0]
    assert made.send(state, LAST, 1).keys() == {"base"}
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


pytestmark = pytest.mark.usefixtures("one_thread")


def settings(folder, **given):
    usual = {"strategy": "fedcbdr", "dataset": "digits", "model": "small", "rounds": 2}
    usual |= {"scenario": "classes", "head": "single", "epochs": 2}
    return tiny(folder, **{**usual, **given})


@pytest.mark.run
def test_products_travel_once_a_task(tmp_path):
    run_in_process(settings(tmp_path))
    sent = ["grams" in row["bytes_up"] for row in rounds_of(tmp_path)]
    told = ["selection" in row["bytes_down"] for row in rounds_of(tmp_path)]
    assert sent == told == [False, True, False, True]
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4


@pytest.mark.run
def test_a_hostile_answer_is_as_good_as_none(tmp_path):
    rows, expected = hostile_and_absent(tmp_path, settings, 2, "grams", "half")
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
