"""Finding a matching foreign task, starting from it, and averaging back."""

import numpy as np
import pytest
import torch
from fedweit_cases import NOTHING, linear_model, stage

from clients.fedweit.client import FedWeit
from clients.fedweit_match.client import FedWeitMatch
from clients.fedweit_match.matching import (
    averaged_back,
    clearly_above,
    matched_accuracy,
)
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.fedweit import FedWeitParams
from strategies.fedweit_match import FedWeitMatchParams
from strategies.fedweit_match.server import FedWeitMatch as Server

W = "body.0.weight"


def test_a_head_in_another_order_is_as_good():
    logits = torch.eye(3)[[0, 0, 1, 2]]  # what the head says: 0, 0, 1, 2
    labels = torch.tensor([2, 2, 0, 1])  # what it is called here
    accuracy, order = matched_accuracy(logits, labels)
    assert accuracy == 1.0
    assert order.tolist() == [1, 2, 0]
    assert logits[:, order].argmax(1).tolist() == labels.tolist()


def test_matched_accuracy_is_the_best_over_all_orders():
    from itertools import permutations

    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 4, generator=draw), torch.arange(40) % 4
    best = max(
        float((logits[:, list(order)].argmax(1) == labels).float().mean())
        for order in permutations(range(4))
    )
    assert matched_accuracy(logits, labels)[0] == pytest.approx(best)


def test_a_candidate_must_exceed_the_known_by_two_standard_errors():
    # sqrt(0.36 * 0.64 / 100) = 0.048
    assert not clearly_above(0.45, 0.36, 100)
    assert clearly_above(0.46, 0.36, 100)
    assert clearly_above(0.1, 0.0, 100), "nothing is known yet"


def scalar(value):
    return {"w": torch.tensor([float(value)]), "count": torch.tensor(3)}


@pytest.mark.parametrize(("target", "share"), [(0, 0), (1, 0.25), (2, 0.5), (3, 0.75)])
def test_averaging_back_takes_the_mixture_that_validates_best(target, share):
    """Logits (w, 0): the label is 0 where w is positive, so the loss falls with w."""

    def logits(tensors, x):
        distance = (tensors["w"] - target).abs()
        return torch.cat([-distance, torch.zeros(1)])[None].expand(len(x), 2)

    valid = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64))
    mixed = averaged_back(scalar(4), scalar(0), logits, valid)
    assert mixed["w"].tolist() == [pytest.approx(4 * share)]
    assert mixed["count"].tolist() == 3


def test_without_validation_examples_nothing_is_averaged():
    valid = Examples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    mixed = averaged_back(scalar(4), scalar(0), lambda t, x: t["w"], valid)
    assert mixed["w"].tolist() == [0.0]


def learner(kind=FedWeitMatch, params=None, client=0, **training):
    chosen = {"epochs": 30, "batch_size": 50, "learning_rate": 0.05} | training
    place = ClientContext(client=client, seed=0, training=Training(**chosen))
    if params is None:
        params = FedWeitMatchParams(lambda1=0.0, threshold=0.0)
    return kind(params, linear_model(), place)


def rule(seed, number, count=200, flip=False):
    """Examples of one hidden linear rule; ``flip`` names its two classes otherwise."""
    weights = torch.randn(4, generator=torch.Generator().manual_seed(seed))
    parts = []
    for split in (1000, 2000, 3000):
        draw = torch.Generator().manual_seed(split + number)
        x = torch.randn(count, 4, generator=draw)
        y = (x @ weights > 0).long()
        parts.append(Examples(x, 1 - y if flip else y))
    return TaskData(*parts, classes=2)


def trained(seed, number, client, flip=False):
    """A task that another client finished, as the server would hand it out."""
    other = learner(client=client)
    _, update = other.train(
        other.init(), NOTHING, stage(0), rule(seed, number, flip=flip)
    )
    return {f"{kind}/{client}/0": update.payload[kind] for kind in KINDS}


KINDS = ("adapters", "masks", "heads")


def begun(received, seed, number):
    """Return my learner and state as my second task begins."""
    mine = learner()
    state, _ = mine.train(mine.init(), NOTHING, stage(0), rule(50, 50))
    return mine, mine.start(state, {"base": {}, **received}, 1, rule(seed, number))


def test_a_new_task_starts_where_another_client_finished_the_same():
    received = trained(1, 1, client=1) | trained(2, 2, client=2)
    mine, state = begun(received, seed=2, number=3)
    assert state["start/from"]["number"].tolist() == [2, 0]
    x, y = rule(2, 4).test
    accuracy = float((mine.predict(state, {}, 1, x).argmax(1) == y).float().mean())
    assert accuracy > 0.9, "before any training"


def test_the_order_of_the_classes_does_not_matter():
    mine, state = begun(trained(2, 2, client=2, flip=True), seed=2, number=3)
    x, y = rule(2, 4).test
    accuracy = float((mine.predict(state, {}, 1, x).argmax(1) == y).float().mean())
    assert accuracy > 0.9


def test_without_a_match_the_task_starts_as_in_fedweit():
    received = trained(50, 60, client=1)  # the rule of my own first task
    _, state = begun(received, seed=50, number=61)
    assert "start/tensors" not in state, "nothing that I do not know myself"
    plain = learner(FedWeit, FedWeitParams(lambda1=0.0, threshold=0.0))
    own, _ = plain.train(plain.init(), NOTHING, stage(0), rule(50, 50))
    expected = plain.start(own, NOTHING, 1, rule(50, 61))
    for group in ("masks/1", "adapters/1", "heads/1"):
        for name, values in expected[group].items():
            np.testing.assert_array_equal(state[group][name], values)


def test_tasks_of_higher_numbers_are_known_too():
    mine = learner()
    state, _ = mine.train(mine.init(), NOTHING, stage(2), rule(50, 50))
    received = {"base": {}, **trained(50, 60, client=1)}
    assert "start/tensors" not in mine.start(state, received, 0, rule(50, 61))


def test_a_finished_task_travels_so_that_it_can_be_rebuilt_exactly():
    other = learner(client=1)
    state, update = other.train(other.init(), NOTHING, stage(0), rule(2, 2))
    mine = learner()
    received = {f"{kind}/1/0": update.payload[kind] for kind in KINDS}
    rebuilt = mine._foreign(received, "1/0", 2)
    theirs = other._tensors(state, 0)
    torch.testing.assert_close(rebuilt[W], theirs[W])
    torch.testing.assert_close(rebuilt["heads.2.weight"], theirs["heads.0.weight"])
    torch.testing.assert_close(rebuilt["body.0.bias"], theirs["body.0.bias"])


def test_the_end_of_a_matched_task_is_between_start_and_end_or_the_end():
    received = {"base": {}, **trained(2, 2, client=2)}
    mine, start = begun(trained(2, 2, client=2), seed=2, number=3)
    first, _ = learner().train(learner().init(), NOTHING, stage(0), rule(50, 50))
    during, update = mine.train(first, received, stage(1, ends_task=False), rule(2, 3))
    assert update.metrics["attention/2/0"] == 1.0
    end = mine._tensors(during, 1)
    after = mine._tensors(mine.finish(during, 1, rule(2, 5)), 1)
    begin = mine.torch(start["start/tensors"])
    span = end[W] - begin[W]
    share = ((end[W] - after[W]) * span).sum() / span.square().sum()
    assert float(share) in [pytest.approx(s, abs=1e-3) for s in (0, 0.25, 0.5, 0.75)]
    torch.testing.assert_close(after[W], end[W] - share * span, atol=1e-4, rtol=1e-4)


def test_a_foreign_task_that_does_not_fit_is_passed_over(caplog):
    wide = trained(2, 2, client=2)
    head = {"head.weight": np.zeros((9, 9), np.float32)}
    wide["heads/2/0"] = {**wide["heads/2/0"], **head}
    bare = trained(2, 2, client=3)
    bare["masks/3/0"] = {}
    double = trained(2, 2, client=5)
    double["heads/5/0"] = {n: v.astype(float) for n, v in double["heads/5/0"].items()}
    _, state = begun(wide | bare | double, seed=2, number=3)
    assert "start/tensors" not in state
    assert "heads.1.weight does not fit" in caplog.text
    assert f"{W} is missing" in caplog.text
    _, state = begun(wide | bare | trained(2, 2, client=4), seed=2, number=3)
    assert state["start/from"]["number"].tolist() == [4, 0], "the sound one is used"


def test_between_the_ends_of_tasks_nothing_travels():
    mine, server = learner(), Server(FedWeitMatchParams(), 0)
    model = linear_model()
    common = server.init(snapshot(model, model.shared_names()))
    first, middle, last = (
        TaskStage(1, 0, starts_task=True, ends_task=False),
        TaskStage(2, 0, starts_task=False, ends_task=False),
        TaskStage(3, 0, starts_task=False, ends_task=True),
    )
    state = mine.init()
    for now in (first, middle, last):
        down = server.configure_train(common, now, 0)
        assert bool(down["base"]) == now.starts_task
        state, update = mine.train(state, down, now, rule(1, 1))
        server.check_update(common, update)
        assert set(update.payload) == ({"base", *KINDS} if now.ends_task else {"base"})
        assert bool(update.payload["base"]) == now.ends_task
        common = server.aggregate_train(common, now, {0: update})
    assert {"adapters/0/0", "masks/0/0", "heads/0/0"} <= set(common)
    groups = set(server.configure_train(common, TaskStage(4, 1, True, False), 1))
    assert groups == {"base", "adapters/0/0", "masks/0/0", "heads/0/0"}
    assert set(server.configure_train(common, TaskStage(4, 1, True, False), 0)) == {
        "base"
    }


@pytest.mark.parametrize(
    "change",
    [
        {"masks": None},
        {"masks": {W: np.zeros(5, np.float32)}},
        {"masks": {"other": np.zeros(6, np.float32)}},
        {"masks": {W: np.zeros(6)}},
        {"masks": {}},
        {"heads": {"head.bias": SparseArray.of_nonzero(np.ones(2, np.float32))}},
        {"heads": {"head.weight": np.zeros(2**24 + 1, np.float32)}},
        {"extra": {}},
    ],
)
def test_the_server_refuses_a_task_that_does_not_fit(change):
    server, model = Server(FedWeitMatchParams(), 0), linear_model()
    common = server.init(snapshot(model, model.shared_names()))
    mine = learner()
    _, update = mine.train(mine.init(), NOTHING, stage(0), rule(1, 1))
    server.check_update(common, update)
    payload = {**update.payload, **change}
    payload = {group: arrays for group, arrays in payload.items() if arrays is not None}
    with pytest.raises(WireError):
        server.check_update(common, Update(payload, 1))
