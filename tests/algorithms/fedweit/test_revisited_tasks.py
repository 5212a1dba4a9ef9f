"""FedWeIT where a client comes back to tasks that it has finished."""

import numpy as np
import pytest
import torch
from fakes import exact
from fedweit_cases import NOTHING, W, data, foreign_payload, learner

from clients.fedweit import client
from clients.fedweit.client import (
    current_task,
    end_task,
    foreign_adapters,
    known_tasks,
    merged_foreign,
    received,
    start_task,
)
from fcl_flower.core.types import TaskStage
from fcl_flower.training.tensors import dense

BOTH = pytest.mark.parametrize("solver", ["closed", "gradient"])


def visit(number, task, starts_task=False, ends_task=True):
    return TaskStage(
        round=number, task=task, starts_task=starts_task, ends_task=ends_task
    )


def lived(weit, *tasks, count=40):
    """Return the state after visits of one round each; a task's data stay the same."""
    state = weit.init()
    for number, task in enumerate(tasks, start=1):
        now = visit(number, task, starts_task=task not in tasks[: number - 1])
        state, _ = weit.train(state, NOTHING, now, data(task + 1, count=count))
    return state


def theta(weit, state, task):
    return weit.build_task_model(state, task).theta(W).detach().numpy()


def kept(state, task):
    """Return the weights of a finished task as they lie in the state."""
    gates = state[f"masks/{task}"][W][:, None]
    return dense(state["base"][W]) * gates + dense(state[f"adapters/{task}"][W])


def moved(state, by=0.5):
    """Return the state with a base that others have changed."""
    draw = np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32)
    return {**state, "base": {W: dense(state["base"][W]) + np.float32(by) * draw}}


# ---- a visit by hand


def soft(values, threshold):
    return np.sign(values) * np.maximum(np.abs(values) - threshold, 0)


def test_a_visit_takes_up_what_followed_the_base_and_the_others_follow_at_its_end():
    weit = learner(lambda1=0.04, lambda2=1.0, threshold=0.03)
    before = moved(lived(weit, 0, 1, 2))
    step = dense(before["base"][W]) - dense(before["anchor/base"][W])
    follows = {
        t: soft(
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
    assert dense(during["adapters/1"][W]).tolist() == (
        dense(before["adapters/1"][W]).tolist()
    ), "it followed while other tasks were trained"

    work = weit.build_task_model(during, 1)
    assert sorted(work.tensors.old) == [0, 2]
    assert "attention" not in {name.split("/")[0] for name in work.leaves}
    step = dense(before["base"][W]) - dense(before["anchor/base"][W])
    expected = 0.7 * sum(
        np.square(step * before[f"masks/{t}"][W][:, None]).sum() for t in (0, 2)
    )
    assert float(work.drift().detach()) == pytest.approx(expected, rel=1e-5)

    after = weit.finish_task(during, 1)
    assert after["anchor/base"] is before["base"]
    for task in range(3):
        assert after[f"anchor/{task}"] is after[f"adapters/{task}"]


# ---- whole visits


@BOTH
def test_what_is_trained_in_a_visit_is_the_task_where_it_stood(solver):
    weit = learner(solver=solver, lambda1=0.0, threshold=0.0, epochs=1, rate=1e-6)
    state = lived(weit, 0, 1, 0, 1)
    np.testing.assert_allclose(
        theta(weit, lived(weit, 0, 1, 0, 1, 0), 0), theta(weit, state, 0), atol=1e-4
    )
    patient = learner(solver=solver, lambda1=0.0, epochs=15)
    loss = [
        torch.nn.functional.cross_entropy(
            patient.predict(lived(patient, *tasks), {}, 0, data(1).test.x),
            data(1).test.y,
        )
        for tasks in ((0, 1), (0, 1, 0), (0, 1, 0, 1, 0))
    ]
    assert loss[0] > loss[1] + 0.01 > loss[2] + 0.02, "each visit adds to the last"


@BOTH
def test_with_a_base_that_stays_other_tasks_make_no_difference(solver):
    """Nothing else leads from one task to another, least of all Adam's memory."""
    weit = learner(solver=solver, lambda1=0.0, base_rate=0.0)
    state = weit.init()
    for number, task in ((1, 0), (3, 0)):
        now = visit(number, task, starts_task=number == 1)
        state, _ = weit.train(state, NOTHING, now, data(1))
    between = lived(weit, 0, 1, 0)
    own = ("masks/0", "heads/0", "adapters/0")
    assert exact({g: between[g] for g in own}) == exact({g: state[g] for g in own})


def test_a_visit_starts_without_the_optimizer_of_the_first_visit(monkeypatch):
    memories = []
    fit = client.fit

    def watched(job):
        memories.append(dict(job.optimizer_state))
        return fit(job)

    monkeypatch.setattr(client, "fit", watched)
    weit = learner()
    state = weit.init()
    # The last visit to task 0 was never asked to end.
    for number, (task, last) in enumerate(
        [(0, True), (1, True), (0, False), (0, False), (1, True)], start=1
    ):
        now = visit(number, task, ends_task=last)
        state, _ = weit.train(state, NOTHING, now, data(task + 1))
    assert [bool(memory) for memory in memories] == [False, False, False, True, False]
    assert state["optimizer"] == {}


@BOTH
def test_a_task_keeps_its_weights_while_another_is_visited_again(solver):
    weit = learner(
        solver=solver,
        lambda1=0.004 if solver == "closed" else 0.0,
        lambda2=1.0,
        threshold=0.0,
        mask_rate=1.0,
        epochs=60,
        rate=0.005,
    )
    state = lived(weit, 0, 1)
    before, base = kept(state, 1), dense(state["base"][W])
    state, _ = weit.train(state, NOTHING, visit(3, 0), data(1))
    assert np.abs(dense(state["base"][W]) - base).max() > 0.04, "the base did move"
    most = np.abs(kept(state, 1) - before).max()
    # Once a visit an entry shrinks, by lambda1 / (2 lambda2) at most.
    shrunk = pytest.approx(0.002, rel=1e-3)
    assert most == shrunk if solver == "closed" else most < 0.005


def test_a_visit_brings_nothing_foreign_and_keeps_what_there_is():
    weit = learner(threshold=0.0, lambda1=0.0)
    state = weit.init()
    for task in (0, 1):
        now = visit(task + 1, task, starts_task=True)
        state, _ = weit.train(state, foreign_payload(3), now, data(task + 1))
    x = data(1).test.x
    during = weit.resume(state, 0)
    assert received(during) == []
    torch.testing.assert_close(
        weit.predict(during, {}, 0, x), weit.predict(state, {}, 0, x)
    )

    after, update = weit.train(state, foreign_payload(2, seed=8), visit(3, 0), data(1))
    assert exact({"f": after["foreign/0"]}) == exact({"f": state["foreign/0"]})
    assert not any(name.startswith("attention/") for name in update.metrics)
    assert set(update.payload) == {"base", "adapters"}
    np.testing.assert_array_equal(
        dense(update.payload["adapters"][W]), dense(after["adapters/0"][W])
    )


# ---- the task in progress


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
    assert second["optimizer"] == {}
    assert len(foreign_adapters(second)[W]) == 2
    expected = foreign_payload(2)["adapters/2/0"][W].to_dense() / 2
    np.testing.assert_allclose(merged_foreign(second)[W].to_dense(), expected)
    assert end_task(second) == {**state, "optimizer": {}}
    assert current_task(state) is None
    assert known_tasks(second) == [3, 10]
