"""FedWeIT's client half on tiny networks, against NumPy and by its promises."""

import numpy as np
import pytest
import torch
from fakes import exact
from fedweit_cases import (
    NOTHING,
    W,
    data,
    foreign_payload,
    learner,
    linear_model,
    sigmoid,
    stage,
)
from torch import nn

from clients.fedweit import client
from clients.fedweit.client import (
    FedWeit,
    Learned,
    current_task,
    end_task,
    foreign_sums,
    known_tasks,
    received,
    start_task,
    with_global_base,
)
from fcl_flower.algorithms.base import Turn
from fcl_flower.core.types import SparseArray
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, snapshot

BOTH = pytest.mark.parametrize("solver", ["closed", "gradient"])
ONE = stage(0, ends_task=False)


def network(body, features=5, shape=(1, 4, 4), tasks=3, single_head=False):
    return MultiHeadModel(
        body,
        features=features,
        input_shape=shape,
        tasks=tasks,
        classes=2,
        single_head=single_head,
    )


def visit(number, task, starts_task=False, ends_task=True):
    return stage(task, starts_task, ends_task, number)


def lived(weit, *tasks):
    """Live through visits of one round each; a task's data stay the same."""
    state = weit.init()
    for number, task in enumerate(tasks, start=1):
        now = visit(number, task, starts_task=task not in tasks[: number - 1])
        state, _ = weit.train(Turn(state, NOTHING, now, data(task + 1)))
    return state


def moved(state, by=0.5):
    """Change the base as others do."""
    draw = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
    return {**state, "base": {W: dense(state["base"][W]) + np.float32(by) * draw}}


def theta(weit, state, task):
    return weit.build_task_model(state, task).theta(W).detach().numpy()


# ---- what travels


def test_base_is_overwritten_only_where_it_was_sent():
    base = {W: np.float32([[1, 1], [2, 2]]), "kept": np.float32([[3, 3]])}
    sent = {W: SparseArray.of_channels(np.float32([[0, 0], [0, 9]]), np.array([1]))}
    new = with_global_base(base, sent)
    assert new[W].tolist() == [[1, 1], [0, 9]], "a zero that was sent is a zero"
    assert new["kept"] is base["kept"]
    assert base[W].tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_adapter_in_training_takes_back_a_share_of_what_others_changed(share):
    weit = learner(follow=share, lambda1=0.1)
    begun, _ = weit.train(
        Turn(lived(weit, 0), NOTHING, stage(1, ends_task=False), data(2))
    )
    new = dense(moved(begun)["base"][W])
    sent = {W: SparseArray.of_channels(new, np.array([1, 4]))}
    taken = weit.take_up(begun, sent)

    changed = np.zeros((6, 1), np.float32)
    changed[[1, 4]] = 1
    expected = np.where(changed, new, dense(begun["base"][W]))
    np.testing.assert_array_equal(taken["base"][W], expected)
    step = dense(taken["base"][W]) - dense(begun["base"][W])
    gated = step * begun["masks/1"][W][:, None]
    moved_by = theta(weit, taken, 1) - theta(weit, begun, 1)
    np.testing.assert_allclose(moved_by, (1 - share) * gated, atol=1e-5)
    assert taken["adapters/0"] is begun["adapters/0"], "older ones follow at its end"


def test_between_tasks_the_base_is_taken_as_it_comes():
    weit = learner(follow=1.0)
    state = lived(weit, 0)
    new = dense(moved(state)["base"][W])
    taken = weit.take_up(state, {W: new})
    assert taken["base"][W] is new
    assert taken["adapters/0"] is state["adapters/0"]


def test_up_go_the_top_channels_and_at_the_end_the_pruned_adapter():
    weit = learner(kappa=0.5, threshold=0.05)
    state, update = weit.train(Turn(weit.init(), NOTHING, ONE, data(1)))
    assert set(update.payload) == {"base"}
    channels = sorted({i // 4 for i in update.payload["base"][W].indices.tolist()})
    gates = state["masks/0"][W]
    assert channels == sorted(np.argsort(-np.abs(gates), kind="stable")[:3].tolist())
    np.testing.assert_array_equal(
        update.payload["base"][W].values, state["base"][W][channels].ravel()
    )

    after, update = weit.train(
        Turn(state, NOTHING, stage(0, starts_task=False), data(1))
    )
    adapter = update.payload["adapters"][W]
    assert update.metrics["adapter_density"] == adapter.density
    assert np.abs(adapter.values).min() > 0.05
    assert 0 < adapter.density < 1
    np.testing.assert_array_equal(
        adapter.to_dense(), dense(after["adapters/0"][W]), "what is sent is kept"
    )


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_a_finished_adapter_is_rounded_and_has_what_it_takes_of_others(bits):
    settings = {"threshold": 0.0, "lambda1": 0.0, "epochs": 20}
    weit, exactly = learner(adapter_bits=bits, **settings), learner(**settings)
    state, offer = lived(weit, 0), foreign_payload(3)
    now = stage(1, ends_task=False)
    state, _ = weit.train(Turn(state, offer, now, data(2)))
    handed = weit.upload(state, stage(1))["adapters"][W].to_dense()
    finished, whole = weit.finish_task(state, 1), exactly.finish_task(state, 1)
    own = dense(whole["adapters/1"][W])
    sums = dense(whole["foreign/1"][W])
    assert not any(group.startswith("foreign") for group in finished)

    for found, wanted in (
        (handed, own),
        (dense(finished["adapters/1"][W]), own + sums),
    ):
        step = np.abs(wanted).max() / (2 ** (bits - 1) - 1)
        np.testing.assert_allclose(found / step, np.rint(wanted / step), atol=1e-4)
        assert len(np.unique(found)) <= 2**bits - 1
    kept = dense(finished["adapters/0"][W])
    assert len(np.unique(kept)) <= 2**bits - 1, "older ones are rounded as well"
    close = np.abs(theta(weit, finished, 1) - theta(exactly, whole, 1)).max()
    assert 0 < close <= np.abs(own + sums).max() / (2 ** (bits - 1) - 1) / 2 + 1e-6


def test_what_is_not_finite_is_not_rounded_away():
    weit = learner(adapter_bits=5)
    for odd in (np.nan, np.inf):
        found = weit.settled({W: torch.tensor([[1.0, odd, -2.0]])})[W].to_dense()
        np.testing.assert_array_equal(found, np.float32([[1, odd, -2]]))
    zeros = weit.settled({W: torch.zeros(2, 3)})[W]
    assert zeros.nnz == 0


def test_the_literal_rule_sends_the_gated_base():
    weit = learner(kappa=1.0, aggregation="literal", gate="sigmoid")
    state, update = weit.train(Turn(weit.init(), NOTHING, ONE, data(1)))
    expected = state["base"][W] * sigmoid(state["masks/0"][W])[:, None]
    np.testing.assert_allclose(
        update.payload["base"][W].to_dense(), expected, rtol=1e-5
    )


def test_a_task_that_ends_says_what_its_parts_amount_to():
    weit = learner(adapter_bits=32, threshold=0.5)
    state = {
        "meta/current": {"task": np.asarray(1)},
        "base": {"a": np.float32([[3, 4]])},
        "adapters/1": {"a": np.float32([[1, 0.5]]), "b": np.ones((1, 4), np.float32)},
        "masks/1": {"a": np.float32([1, 0, 0, 0, 0, 2])},
        "attention": {"a": np.float32([0.5, 2])},
    }
    shares = {"adapter_density": 5 / 6, "mask_density": 2 / 6}
    assert weit.task_statistics(state, 1) == {**shares, "foreign_norm": 0}
    state["received/2/0"] = {"a": SparseArray.of_nonzero(np.float32([[2, 0]]))}
    state["received/3/0"] = {"a": SparseArray.of_nonzero(np.float32([[0, 1.5]]))}
    found = weit.task_statistics(state, 1)
    assert found == {**shares, "foreign_norm": pytest.approx(np.sqrt(10) / 5)}


# ---- foreign adapters


def test_foreign_adapters_start_with_equal_attention_learn_and_are_folded():
    weit = learner(rate=0.001, attention_rate=30.0, threshold=0.0, lambda1=0.0)
    state, offer = lived(weit, 0), foreign_payload(4)
    assert weit.start(state, offer, 1)["attention"][W].tolist() == [0.25] * 4

    state, update = weit.train(Turn(state, offer, stage(1, ends_task=False), data(2)))
    alpha = state["attention"][W]
    assert np.abs(alpha - 0.25).min() > 0.01
    for j in range(4):
        shown = update.metrics[f"attention/{j + 1}/0"]
        assert shown == pytest.approx(abs(alpha[j]), rel=1e-6)

    foreign = sum(
        alpha[j] * offer[f"adapters/{j + 1}/0"][W].to_dense() for j in range(4)
    )
    gated = state["base"][W] * state["masks/1"][W][:, None]
    expected = gated + state["adapters/1"][W] + foreign
    finished = weit.finish_task(state, 1)
    for each in (state, finished):
        np.testing.assert_allclose(theta(weit, each, 1), expected, atol=1e-5)
    assert "attention" not in finished
    assert received(finished) == []


def test_a_task_that_begins_leaves_nothing_of_one_that_was_never_ended():
    state = {"base": {W: np.zeros((6, 4), np.float32)}, "masks/3": {}, "masks/10": {}}
    first = {
        **start_task(state, 3, {"1/0": foreign_payload(1)["adapters/1/0"]}),
        "optimizer": {"step": np.ones(1)},
    }
    assert (current_task(first), received(first)) == (3, ["1/0"])
    other = {"2/0": foreign_payload(2)["adapters/2/0"], "2/1": state["base"]}
    second = start_task(first, 10, other)
    assert (current_task(second), received(second)) == (10, ["2/0", "2/1"])
    assert second["attention"][W].tolist() == [0.5, 0.5]
    expected = foreign_payload(2)["adapters/2/0"][W].to_dense() / 2
    np.testing.assert_allclose(foreign_sums(second)[W], expected)
    assert end_task(second) == {**state, "optimizer": {}}
    assert current_task(state) is None
    assert known_tasks(second) == [3, 10]


# ---- old tasks


@BOTH
def test_old_tasks_predict_as_before_though_the_base_moved(solver):
    weit = learner(solver=solver, lambda1=0.0, lambda2=1000.0, threshold=0.0)
    state = lived(weit, 0)
    before, x = weit.predict(state, {}, 0, data(1).test.x), data(1).test.x
    after = lived(weit, 0, 1, 2)
    assert np.abs(after["base"][W] - state["base"][W]).max() > 0.01, "it did move"
    close = {"atol": 1e-4 if solver == "closed" else 0.05, "rtol": 0}
    torch.testing.assert_close(weit.predict(after, {}, 0, x), before, **close)
    if solver == "closed":  # and where the server moves it
        found = weit.predict(moved(state), {}, 0, x)
        torch.testing.assert_close(found, before, **close)


def test_a_task_whose_last_round_never_came_is_kept_all_the_same():
    weit = learner(lambda1=0.0, threshold=0.0)
    state, _ = weit.train(Turn(weit.init(), foreign_payload(2), stage(0), data(1)))
    # The client was away in the last round of task 1, and the server's base has moved.
    state, _ = weit.train(Turn(state, NOTHING, stage(1, ends_task=False), data(2)))
    before = [theta(weit, state, task) for task in (0, 1)]
    base = moved(state)["base"][W]
    rows = {W: SparseArray.of_channels(base, np.arange(len(base)))}
    state, _ = weit.train(Turn(state, {"base": rows}, stage(2), data(3)))
    for task in (0, 1):
        np.testing.assert_allclose(theta(weit, state, task), before[task], atol=1e-3)


def test_the_base_moves_less_where_it_feels_what_old_adapters_would_cost():
    step = {}
    for solver in ("closed", "unbraked"):
        weit = learner(solver=solver, lambda1=0.05, rate=0.002, epochs=20)
        before, after = lived(weit, 0), lived(weit, 0, 1)
        step[solver] = np.abs(after["base"][W] - before["base"][W]).mean()
    assert step["closed"] < 0.7 * step["unbraked"]


# ---- a client comes back to tasks that it has finished


def shrunk(values, threshold):
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0)


def test_a_visit_takes_up_what_followed_the_base_and_the_others_follow_at_its_end():
    weit = learner(lambda1=0.04, lambda2=1.0, threshold=0.03, mask_rate=30.0)
    before = moved(lived(weit, 0, 1, 2))
    step = dense(before["base"][W]) - dense(before["anchor/base"][W])
    follows = {
        t: shrunk(
            dense(before[f"adapters/{t}"][W]) - step * before[f"masks/{t}"][W][:, None],
            0.04 / 2,
        )
        for t in range(3)
    }

    during = weit.resume(before, 1)
    assert current_task(during) == 1
    np.testing.assert_allclose(during["adapters/1"][W], follows[1], atol=1e-6)
    for group in ("masks/1", "heads/1", "adapters/0", "adapters/2", "anchor/base"):
        assert during[group] is before[group], "as it was left"

    after = weit.finish_task(during, 1)
    assert current_task(after) is None
    for task, expected in follows.items():
        kept = np.where(np.abs(expected) > 0.03, expected, 0)
        assert 0 < np.count_nonzero(kept) < np.count_nonzero(expected), "all are pruned"
        found = dense(after[f"adapters/{task}"][W])
        np.testing.assert_allclose(found, kept, atol=1e-6)
    assert after["anchor/base"] is before["base"]


def test_in_a_visit_the_gradient_solver_trains_all_other_tasks_along():
    weit = learner(solver="gradient", lambda2=0.7)
    before = moved(lived(weit, 0, 1, 2))
    during = weit.resume(before, 1)
    adapter = dense(before["adapters/1"][W])
    assert dense(during["adapters/1"][W]).tolist() == adapter.tolist(), "it followed"

    work = weit.build_task_model(during, 1)
    assert sorted(work.tensors.old) == [0, 2]
    step = dense(before["base"][W]) - dense(before["anchor/base"][W])
    expected = 0.7 * sum(
        np.square(step * before[f"masks/{t}"][W][:, None]).sum() for t in (0, 2)
    )
    assert float(work.drift().detach()) == pytest.approx(expected, rel=1e-5)

    after = weit.finish_task(during, 1)
    for task in range(3):
        assert after[f"anchor/{task}"] is after[f"adapters/{task}"]


@BOTH
def test_with_a_base_that_stays_other_tasks_make_no_difference(solver):
    """Nothing else leads from one task to another, least of all Adam's memory."""
    weit = learner(solver=solver, lambda1=0.0, base_rate=0.0)
    state = weit.init()
    for number in (1, 3):
        now = visit(number, 0, starts_task=number == 1)
        state, _ = weit.train(Turn(state, NOTHING, now, data(1)))
    between, own = lived(weit, 0, 1, 0), ("masks/0", "heads/0", "adapters/0")
    assert exact({g: between[g] for g in own}) == exact({g: state[g] for g in own})


def test_a_visit_starts_without_the_optimizer_of_the_first_visit(monkeypatch):
    memories, fit = [], client.fit

    def watched(job):
        memories.append(bool(job.optimizer_state))
        return fit(job)

    monkeypatch.setattr(client, "fit", watched)
    weit = learner(epochs=1)
    state = weit.init()
    # The last visit to task 0 was never asked to end.
    visits = [(0, True), (1, True), (0, False), (0, False), (1, True)]
    for number, (task, last) in enumerate(visits, start=1):
        now = visit(number, task, ends_task=last)
        state, _ = weit.train(Turn(state, NOTHING, now, data(task + 1)))
    assert memories == [False, False, False, True, False]
    assert state["optimizer"] == {}


def test_a_visit_brings_nothing_foreign_and_keeps_what_there_is():
    weit = learner(threshold=0.0, lambda1=0.0)
    state, _ = weit.train(Turn(weit.init(), foreign_payload(3), stage(0), data(1)))
    assert received(weit.resume(state, 0)) == []
    offer = foreign_payload(2, seed=8)
    after, update = weit.train(Turn(state, offer, visit(3, 0), data(1)))
    assert exact({"f": after["foreign/0"]}) == exact({"f": state["foreign/0"]})
    assert not any(name.startswith("attention/") for name in update.metrics)
    assert set(update.payload) == {"base", "adapters"}


# ---- networks


def test_any_network_of_linear_and_convolutional_layers_is_decomposed():
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )
    weit = learner(network(body), threshold=0.0, lambda1=0.0)
    shape = (1, 4, 4)
    state, update = weit.train(
        Turn(weit.init(), NOTHING, stage(0), data(1, shape=shape))
    )
    assert set(update.payload["base"]) == {W, "body.4.weight"}
    private = state["heads/0"]
    assert {"body.1.weight", "body.1.running_mean", "heads.0.weight"} <= set(private)
    assert "heads.1.weight" not in private
    assert np.abs(private["body.1.running_mean"]).max() > 0
    x = data(1, shape=shape).test.x
    before = weit.predict(state, {}, 0, x)
    state, _ = weit.train(Turn(state, NOTHING, stage(1), data(2, shape=shape)))
    close = {"atol": 1e-3, "rtol": 1e-3}
    torch.testing.assert_close(weit.predict(state, {}, 0, x), before, **close)
    logits = weit.predict(state, {}, 2, x)
    assert logits.shape == (40, 2), "a task never trained can be asked"


@pytest.mark.parametrize("single_head", [False, True])
def test_what_is_frozen_is_neither_decomposed_nor_kept_by_tasks(single_head):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    body[0].requires_grad_(False)
    model = network(body, shape=(4,), tasks=2, single_head=single_head)
    frozen = snapshot(model, ["body.0.weight", "body.0.bias"])
    weit = learner(model)

    state, update = weit.train(Turn(weit.init(), NOTHING, stage(0), data(1)))

    assert set(update.payload["base"]) == set(state["masks/0"]) == {"body.2.weight"}
    own = {"body.2.bias", "heads.0.weight", "heads.0.bias"}
    assert set(state["heads/0"]) == own
    assert exact({"": snapshot(model, frozen)}) == exact({"": frozen})


def test_gates_leave_their_start_and_those_of_unused_channels_close():
    model = linear_model()
    with torch.no_grad():
        model.body[0].weight[3:, :2] = 0  # channels that see only inputs 2 and 3

    def silent(part):
        return Examples(part.x * torch.tensor([1.0, 1.0, 0.0, 0.0]), part.y)

    parts = data(1)
    task = TaskData(*map(silent, (parts.train, parts.valid, parts.test)), parts.classes)
    weit = learner(model, rate=1e-3, base_rate=0.0, mask_rate=30.0)
    state, _ = weit.train(Turn(weit.init(), NOTHING, ONE, task))
    gates = state["masks/0"][W]
    assert gates[3:].tolist() == [0, 0, 0]
    used = np.abs(gates[:3] - weit.params.initial_gate)
    assert used.min() > 0.02, "they have left their start"
    assert np.ptp(gates[:3]) > 0.05, "and channels differ"
    slow = learner(linear_model(), rate=1e-3)
    state, _ = slow.train(Turn(slow.init(), NOTHING, ONE, data(1)))
    assert np.abs(state["masks/0"][W] - 1).max() < 0.006, "by a rate of their own"


def test_what_the_network_does_not_use_has_no_step_to_shrink_after():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 6), nn.Linear(4, 6)

        def forward(self, x):
            return self.used(x)

    model = linear_model()
    model.body = Half()
    weit = learner(model, initial_adapter=1.0)
    state, _ = weit.train(Turn(weit.init(), NOTHING, ONE, data(1)))
    spare = "body.spare.weight"
    assert np.array_equal(state["adapters/0"][spare], weit.init()["base"][spare])


# ---- foreign adapters that harm


def test_the_loss_is_that_of_the_validation_samples():
    ours, given = learner(drop_harmful=True), data(1)
    state, _, loss = ours.learn(
        Turn(ours.start(ours.init(), NOTHING, 0), NOTHING, ONE, given)
    )
    logits = ours.predict(state, NOTHING, 0, given.valid.x)
    expected = torch.nn.functional.cross_entropy(logits, given.valid.y)
    assert loss == pytest.approx(float(expected), rel=1e-4)


SEVERAL = {"123": 2.0, "": 1.0, "1": 0.5, "2": 1.5, "3": 0.9}


@pytest.mark.parametrize(
    ("losses", "kept"),
    [
        ({"12": 1.0, "": 1.0}, "12"),
        ({"12": np.nan, "": np.nan}, "12"),
        ({"12": 2.0, "": 1.0, "1": 1.5, "2": 1.0}, ""),
        ({"12": 2.0, "": 1.0, "1": 1.5, "2": 0.9}, "2"),
        ({"12": 2.0, "": 1.0, "1": 0.5, "2": 0.9}, "1"),
        ({**SEVERAL, "13": 0.4}, "13"),
        ({**SEVERAL, "13": 0.6}, "1"),
        ({"": 1.0}, ""),
        ({"1": 2.0, "": 1.0}, ""),
    ],
)
def test_whose_adapters_are_tried_in_turn_and_whose_are_kept(losses, kept, monkeypatch):
    sets = []

    def learn(self, turn):
        clients = {source.split("/")[0] for source in received(turn.state)}
        sets.append("".join(sorted(clients)))
        return Learned(turn.state, {}, losses[sets[-1]])

    monkeypatch.setattr(FedWeit, "learn", learn)
    adapter = foreign_payload(1)["adapters/1/0"]
    offer = {f"adapters/{c}/{t}": adapter for c in next(iter(losses)) for t in (0, 1)}
    ours = learner(drop_harmful=True)
    state, _, _ = ours.begin(Turn(ours.init(), {**NOTHING, **offer}, ONE, data(1)))
    assert sets == list(losses)
    assert received(state) == [f"{c}/{t}" for c in kept for t in (0, 1)]
    sets.clear()
    learner().begin(Turn(ours.init(), {**NOTHING, **offer}, ONE, data(1)))
    assert len(sets) == 1, "if so asked"
