"""APD on tiny networks: its loss and its steps by plain autograd, and what it keeps."""

import numpy as np
import pytest
import torch
from apd_cases import SGD, begun, check, descend, place
from fakes import exact, run_in_process, summary_of, tiny
from fedweit_cases import W, data, linear_model, stage
from torch import nn

from clients.apd import Apd, ApdTasks, local_of
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense
from strategies.apd import ApdParams


def learner(client=0, tasks=3, epochs=5, **params):
    given = {"consolidate_every": 0} | params
    return Apd(ApdParams(**given), linear_model(tasks), place(client, epochs))


def lived(apd, tasks):
    state = apd.init()
    for task in range(tasks):
        state, _ = apd.train(state, {}, stage(task), data(task + 1))
    return state


# ---- the equations


def test_training_is_descent_on_the_equations_of_the_paper():
    params = ApdParams(
        lambda1=0.02,
        lambda2=0.3,
        weight_decay=0.2,
        threshold=0,
        mask_rate=2,
        consolidate_every=0,
    )
    context = place(epochs=4, rate=0.1, optimizer=SGD)
    apd = Apd(params, linear_model(), context)
    given = {"steps": 4, "rate": 0.1, "params": params}

    state, _ = apd.train(apd.init(), {}, stage(0), data(1))
    sigma = linear_model().state_dict()[W]
    one = begun(0, sigma, params)
    one = descend(one, data(1).train, old=[], first=True, **given)
    check(state, 0, one)
    assert not torch.equal(one["v"], torch.zeros(6)), "masks learn"

    after, _ = apd.train(state, {}, stage(1), data(2))
    two = begun(1, one["sigma"], params)
    gates = torch.sigmoid(one["v"])
    old = [(one["tau"], gates, one["sigma"])]
    two = descend(two, data(2).train, old=old, first=False, **given)
    check(after, 1, two)

    # The old tau has followed: the minimiser of its part of the loss.
    u = one["tau"] - (two["sigma"] - one["sigma"]) * gates[:, None]
    followed = u.sign() * (u.abs() - 0.02 / (2 * 0.3)).clamp(min=0)
    np.testing.assert_allclose(dense(after["adapters/0"][W]), followed, atol=2e-6)
    assert after["masks/0"] is state["masks/0"]


def test_what_a_group_shares_is_part_of_the_weights_and_is_not_trained():
    params = ApdParams(lambda1=0, threshold=0, consolidate_every=0)
    context = place(epochs=2, rate=0.1, optimizer=SGD)
    apd = Apd(params, linear_model(), context)
    state, _ = apd.train(apd.init(), {}, stage(0), data(1))
    local = np.full((6, 4), 0.5, np.float32)
    shared = {"local/1": {W: local}, "meta/groups/0": {W: np.asarray(1)}}

    x = data(1).test.x
    found = apd.predict({**state, **shared}, {}, 0, x)
    by_hand = {**state, "adapters/0": {W: dense(state["adapters/0"][W]) + local}}
    torch.testing.assert_close(found, apd.predict(by_hand, {}, 0, x))

    visit = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
    after, _ = apd.train({**state, **shared}, {}, visit, data(1))
    leaf = {
        **begun(0, torch.from_numpy(state["base"][W]), params),
        "v": torch.from_numpy(state["masks/0"][W]),
        "tau": torch.from_numpy(dense(state["adapters/0"][W])),
        "bias": torch.from_numpy(state["heads/0"]["body.0.bias"]),
        "head": torch.from_numpy(state["heads/0"]["heads.0.weight"]),
        "offset": torch.from_numpy(state["heads/0"]["heads.0.bias"]),
        "local": torch.from_numpy(local),
    }
    leaf = {name: values.clone() for name, values in leaf.items()}
    leaf = descend(leaf, data(1).train, params, 2, 0.1, old=[], first=True)
    check(after, 0, leaf)
    assert after["local/1"] is shared["local/1"]


def test_entries_up_to_the_threshold_are_dropped_when_a_task_ends():
    kept = learner(threshold=0.0)
    state = lived(kept, 1)
    cut = float(np.median(np.abs(dense(state["adapters/0"][W]))))
    dropped = lived(learner(threshold=cut), 1)
    expected = dense(state["adapters/0"][W])
    expected = np.where(np.abs(expected) > cut, expected, 0)
    np.testing.assert_array_equal(dense(dropped["adapters/0"][W]), expected)


def test_old_tasks_predict_as_before_though_the_shared_weights_moved():
    apd = learner(lambda1=0.0, threshold=0.0)
    state = lived(apd, 1)
    x = data(1).test.x
    before, sigma = apd.predict(state, {}, 0, x), state["base"][W]
    for task in (1, 2):
        state, _ = apd.train(state, {}, stage(task), data(task + 1))
    assert np.abs(state["base"][W] - sigma).max() > 0.01
    torch.testing.assert_close(apd.predict(state, {}, 0, x), before, atol=1e-4, rtol=0)


# ---- consolidation


def test_adapters_are_consolidated_after_every_s_new_tasks():
    apd = learner(tasks=5, epochs=1, consolidate_every=2, groups=1, gap=0.5)
    state, clustered = apd.init(), []
    for task in range(5):
        state, _ = apd.train(state, {}, stage(task), data(task + 1))
        clustered.append(sum(group.startswith("meta/groups/") for group in state))
    assert clustered == [0, 2, 2, 4, 4]

    again = TaskStage(round=6, task=1, starts_task=False, ends_task=True)
    visited, _ = apd.train(state, {}, again, data(2))
    assert exact({g: a for g, a in visited.items() if g.startswith("local/")}) == exact(
        {g: a for g, a in state.items() if g.startswith("local/")}
    ), "no task is new"


def test_each_consolidation_may_have_k_groups_more():
    apd = learner(tasks=6, epochs=1, consolidate_every=3, groups=2, gap=10.0)
    seen = []
    state = apd.init()
    for task in range(6):
        state, _ = apd.train(state, {}, stage(task), data(task + 1))
        if task in (2, 5):
            known = range(task + 1)
            seen.append({int(state[f"meta/groups/{t}"][W]) for t in known})
    assert [len(groups) for groups in seen] == [2, 4]


def test_a_wide_gap_shares_all_and_moves_old_tasks_by_half_of_it_at_most():
    given = {"tasks": 2, "threshold": 0.0, "lambda1": 0.0, "groups": 1}
    alone = lived(learner(**given), 2)
    one, two = (dense(alone[f"adapters/{task}"][W]) for task in (0, 1))
    for gap in (float(np.median(np.abs(one - two))), 10.0):
        state = lived(learner(**given, consolidate_every=2, gap=gap), 2)
        for task in (0, 1):
            local = dense(local_of(state, task)[W])
            tau = dense(state[f"adapters/{task}"][W])
            was = dense(alone[f"adapters/{task}"][W])
            assert np.abs(local + tau - was).max() <= gap / 2 + 1e-6
            assert np.count_nonzero(local) == (24 if gap == 10.0 else 12)
            assert not (local * tau).any(), "an entry is shared or a task's own"
        if gap == 10.0:
            assert state["adapters/0"][W].nnz == state["adapters/1"][W].nnz == 0


def test_the_next_consolidation_begins_with_the_whole_adapters():
    given = {"tasks": 4, "threshold": 0.0, "lambda1": 0.0, "epochs": 1}
    alone = lived(learner(**given), 4)
    gap = 0.02
    state = lived(learner(**given, consolidate_every=2, groups=1, gap=gap), 4)
    assert {g for g in state if g.startswith("local/")} <= {"local/0", "local/1"}
    for task in range(4):
        local = local_of(state, task)
        whole = dense(state[f"adapters/{task}"][W])
        whole = whole + (dense(local[W]) if W in local else 0)
        was = dense(alone[f"adapters/{task}"][W])
        # Two consolidations, and what each moved the training after it.
        assert np.abs(whole - was).max() <= 4 * gap


def test_a_task_that_was_never_ended_is_consolidated_when_the_next_one_begins():
    apd = learner(consolidate_every=2, groups=1)
    state = lived(apd, 1)
    state, _ = apd.train(state, {}, stage(1, ends_task=False), data(2))
    assert "meta/groups/1" not in state
    state, _ = apd.train(state, {}, stage(2, ends_task=False), data(3))
    assert {"meta/groups/0", "meta/groups/1"} <= state.keys()
    assert "meta/groups/2" not in state


def test_what_was_shared_before_a_consolidation_is_dropped_by_it(monkeypatch):
    def found(adapters, count, gap, seed):
        number = np.asarray(len(adapters))
        known = {f"meta/groups/{task}": {W: number} for task in adapters}
        return {**known, f"local/{number}": {W: np.zeros((6, 4), np.float32)}}

    monkeypatch.setattr("clients.apd.consolidate", found)
    apd = learner(tasks=4, epochs=1, consolidate_every=2, groups=1)
    assert {g for g in lived(apd, 3) if g.startswith("local/")} == {"local/2"}
    assert {g for g in lived(apd, 4) if g.startswith("local/")} == {"local/4"}


def test_clients_draw_their_centres_by_themselves(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "clients.apd.consolidate",
        lambda adapters, count, gap, seed: seeds.append(seed) or {},
    )
    for client in (0, 1, 1):
        lived(learner(client, epochs=1, consolidate_every=2, groups=1), 2)
    first, second, again = seeds
    assert first != second == again


# ---- whole runs


def after_five_tasks(folder, **given):
    shape = {"clients": 1, "tasks": 5, "epochs": 5, "learning_rate": 3e-3}
    run_in_process(tiny(folder, **shape, **given))
    return summary_of(folder)


def test_it_forgets_nothing_and_consolidation_makes_it_smaller(tmp_path):
    found = {
        name: after_five_tasks(tmp_path / name, strategy=strategy, **more)
        for name, strategy, more in (
            ("local", "local", {}),
            ("apd", "apd", {}),
            ("apart", "apd", {"strategy.consolidate_every": 0}),
        )
    }
    accuracy = {name: one["average_accuracy"] for name, one in found.items()}
    assert accuracy["apd"] > max(0.97, accuracy["local"])
    assert found["apd"]["forgetting"] < min(0.01, found["local"]["forgetting"])
    assert abs(accuracy["apd"] - accuracy["apart"]) < 0.01
    assert found["apd"]["model_bytes"] < 0.95 * found["apart"]["model_bytes"]
    assert found["apd"]["nominal_bytes_up"] == 0


def test_as_many_groups_as_tasks_are_refused():
    sentence = r"strategy\.groups: got 3, expected less than strategy\.consolidate_ever"
    with pytest.raises(ConfigError, match=sentence):
        algorithm("apd").params({"groups": 3, "consolidate_every": 3})
    algorithm("apd").params({"groups": 3, "consolidate_every": 0})


def test_a_model_without_weights_is_refused():
    body = nn.Sequential(nn.Flatten())
    model = MultiHeadModel(
        body, features=4, input_shape=(4,), tasks=1, classes=2, single_head=False
    )
    with pytest.raises(ConfigError, match="APD decomposes nothing else"):
        ApdTasks(ApdParams(), model, place())
