"""FedCBDR, client half: products of features, samples by leverage, the loss."""

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    FOURTH,
    NOTHING,
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

from clients import fedcbdr
from clients.fedcbdr import FedCbdr
from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.exemplars import leverage_scores
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.tensors import load
from strategies.fedcbdr import FedCbdrParams
from strategies.lorm.merging import upper_half


def learner(client=0, where=None, **params):
    return FedCbdr(FedCbdrParams(**params), model(), where or place(client))


def selection(gram, quotas):
    return {"gram": upper_half(gram), "quotas": np.array(quotas, np.int64)}


def coordinated(one, stage, task, quotas, received=None, state=None, count=20):
    """Train in a task's last round, as a server with this client alone would ask."""
    received = received or start()
    answer = one.answer_query({}, received, stage, data(task, count))["grams"]
    told = {"gram": answer["half"], "quotas": np.array(quotas, np.int64)}
    sent = {**received, "selection": told}
    return one.train(state or {}, sent, stage, data(task, count))


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
    found = learner().answer_query({}, asked, FIRST, data(1))["grams"]
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
    during, update = one.train(state, start(), SECOND, data(1))
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
    state, _ = one.train({}, start(), FIRST, data(0))
    assert state["memory"] == {}
    state, _ = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    again, _ = one.train(state, start(), THIRD, data(1))
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
        state, _ = learner(client).train({}, sent, FIRST, task)
        hits += state["memory"]["x"][0].tolist() == x[0].tolist()

    assert 0.75 < share < 0.98
    assert hits / 150 == pytest.approx(
        share, abs=3 * (share * (1 - share) / 150) ** 0.5
    )


def test_a_client_without_samples_of_a_task_makes_room_all_the_same():
    one = learner()
    state, _ = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    answer = one.answer_query(state, start(), THIRD, NOTHING)["grams"]
    assert not answer["half"].any()
    assert not answer["counts"].any()
    told = {**start(), "selection": selection(np.eye(4), [1, 1, 0, 0, 0, 0])}
    state, _ = one.train(state, told, THIRD, NOTHING)
    assert sorted(state["memory"]["y"].tolist()) == [0, 1]
    alone, _ = one.train({}, told, FIRST, NOTHING)
    assert alone["memory"] == {}


# ---- the loss


WEIGHTS = {"old_weight": 1.4, "new_weight": 0.6}


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("rows", [[0, 3, 5, 20, 22], [1, 2], [20, 21, 24]])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(growing, rows):
    one = learner(where=place(learning_rate=1e-12), **WEIGHTS)
    if growing:
        one.model.restrict_head([0, 1])
    state, _ = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    if growing:
        one.model.restrict_head([0, 1, 2, 3])
    one.train(state, start(), SECOND, data(1))
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

    check_loss(one, x, y, rows, by_hand)


def test_what_is_old_is_known_over_the_rounds_of_a_task():
    one = learner(where=place(learning_rate=1e-12))
    state = {}
    for stage in (FIRST, SECOND, THIRD, FOURTH):
        state, _ = one.train(state, start(), stage, data(stage.task))
        old = [round(float(t), 2) for t in one._temperatures]
        assert old == [0.9] * (2 * stage.task) + [1.1] * (6 - 2 * stage.task)


def test_with_weights_and_temperatures_of_1_the_first_task_is_fedavgs(monkeypatch):
    monkeypatch.setattr(fedcbdr, "NEW_TEMPERATURE", 1.0)
    ones = dict.fromkeys(WEIGHTS, 1.0)
    one, plain = learner(where=place(epochs=3), **ones), None
    _, found = coordinated(one, FIRST, 0, [3, 2, 0, 0, 0, 0])
    plain = LocalTraining(Params(), model(), place(epochs=3))
    _, expected = plain.train({}, start(), FIRST, data(0))
    for name, values in expected.payload["base"].items():
        np.testing.assert_allclose(found.payload["base"][name], values, atol=1e-6)
