"""APD on tiny networks: its loss and its steps by plain autograd, and what it keeps."""

from itertools import product

import numpy as np
import pytest
import torch
from apd_cases import SGD, begun, check, descend, place
from fakes import exact, run_in_process, summary_of, tiny
from fedweit_cases import W, data, linear_model, stage
from torch import nn

from clients.apd import Apd, consolidate, group_tasks, local_of, split_group
from fcl_flower.algorithms.base import Turn
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense
from strategies.apd import ApdParams


def learner(client=0, tasks=3, epochs=5, **params):
    given = {"consolidate_every": 0} | params
    return Apd(ApdParams(**given), linear_model(tasks), place(client, epochs))


def lived(apd, tasks, seen=lambda state: None):
    state = apd.init()
    for task in range(tasks):
        state, _ = apd.train(Turn(state, {}, stage(task), data(task + 1)))
        seen(state)
    return state


def shared_groups(state):
    return {group for group in state if group.startswith("local/")}


def whole(state, task):
    local, tau = local_of(state, task), dense(state[f"adapters/{task}"][W])
    return tau + (dense(local[W]) if W in local else 0)


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
    apd = Apd(params, linear_model(), place(epochs=4, rate=0.1, optimizer=SGD))
    given = {"steps": 4, "rate": 0.1, "params": params}

    state, _ = apd.train(Turn(apd.init(), {}, stage(0), data(1)))
    one = begun(0, linear_model().state_dict()[W], params)
    one = descend(one, data(1).train, old=[], first=True, **given)
    check(state, 0, one)
    assert not torch.equal(one["v"], torch.zeros(6)), "masks learn"

    after, update = apd.train(Turn(state, {}, stage(1), data(2)))
    two, gates = begun(1, one["sigma"], params), torch.sigmoid(one["v"])
    old = [(one["tau"], gates, one["sigma"])]
    two = descend(two, data(2).train, old=old, first=False, **given)
    check(after, 1, two)
    assert update.payload == {}, "nothing travels"

    # The old tau has followed: the minimiser of its part of the loss.
    u = one["tau"] - (two["sigma"] - one["sigma"]) * gates[:, None]
    followed = u.sign() * (u.abs() - 0.02 / (2 * 0.3)).clamp(min=0)
    np.testing.assert_allclose(dense(after["adapters/0"][W]), followed, atol=2e-6)
    assert after["masks/0"] is state["masks/0"]


def test_what_a_group_shares_is_part_of_the_weights_and_is_not_trained():
    params = ApdParams(lambda1=0, threshold=0, consolidate_every=0)
    apd = Apd(params, linear_model(), place(epochs=2, rate=0.1, optimizer=SGD))
    state = lived(apd, 1)
    local = np.full((6, 4), 0.5, np.float32)
    shared = {"local/1": {W: local}, "meta/groups/0": {W: np.asarray(1)}}

    visit = TaskStage(round=2, task=0, starts_task=False, ends_task=True)
    after, _ = apd.train(Turn({**state, **shared}, {}, visit, data(1)))
    own = state["heads/0"]
    leaf = {
        "sigma": state["base"][W],
        "v": state["masks/0"][W],
        "tau": dense(state["adapters/0"][W]),
        "bias": own["body.0.bias"],
        "head": own["heads.0.weight"],
        "offset": own["heads.0.bias"],
        "local": local,
    }
    leaf = {name: torch.tensor(values) for name, values in leaf.items()}
    check(after, 0, descend(leaf, data(1).train, params, 2, 0.1, old=[], first=True))
    assert after["local/1"] is shared["local/1"]


def test_entries_up_to_the_threshold_are_dropped_when_a_task_ends():
    expected = dense(lived(learner(threshold=0.0), 1)["adapters/0"][W])
    cut = float(np.median(np.abs(expected)))
    dropped = lived(learner(threshold=cut), 1)
    expected = np.where(np.abs(expected) > cut, expected, 0)
    np.testing.assert_array_equal(dense(dropped["adapters/0"][W]), expected)


# ---- the equations of consolidation


def around(centres, of, seed=0, spread=0.01):
    """Draw tau of tasks, shape (3, 2), near one of some random centres each."""
    draw = np.random.default_rng(seed)
    middle = draw.normal(size=(centres, 3, 2))
    return [np.float32(middle[n] + spread * draw.normal(size=(3, 2))) for n in of]


def test_what_lies_within_the_gap_becomes_one_entry_that_all_share():
    tau = [np.float32([1.0, 0.0, 5.0, -3.0]), np.float32([1.5, 0.0, 9.0, 1.0])]
    tau.append(np.float32([1.0, 0.0, 6.0, -3.5]))

    local, left = split_group(tau, gap=0.5)

    # Entry 0: 1.5 - 1 = 0.5 is within the gap; shared is the middle, not the mean.
    assert local.tolist() == [1.25, 0, 0, 0]
    own = [[0, 0, 5, -3], [0, 0, 9, 1], [0, 0, 6, -3.5]]
    assert [values.tolist() for values in left] == own
    assert local.dtype == left[0].dtype == np.float32
    assert tau[0].tolist() == [1, 0, 5, -3], "given values stay"


@pytest.mark.parametrize("seed", range(2))
def test_the_groups_have_the_least_squares_of_all_partitions(seed):
    tau = around(2, [0, 1, 0, 0, 1, 1], seed)
    points = np.stack([values.reshape(-1) for values in tau]).astype(np.float64)

    def squares(labels):
        parts = [points[[n == g for n in labels]] for g in set(labels)]
        return sum(np.square(part - part.mean(0)).sum() for part in parts)

    best = min(squares(labels) for labels in product(range(2), repeat=6))
    assert squares(group_tasks(tau, 2, seed)) == pytest.approx(best, rel=1e-5)


def test_coordinates_and_groups_may_be_fewer_or_more_than_tasks():
    wide = [np.float32([[1] * 50]), np.float32([[9] * 50]), np.float32([[1.1] * 50])]
    found = group_tasks(wide, 2, 0)
    assert found[0] == found[2] != found[1]
    narrow = [np.float32([[v]]) for v in (1, 9, 1.1, 9.2, 1.2)]
    found = group_tasks(narrow, 2, 0)
    assert found[0] == found[2] == found[4] != found[1] == found[3]
    assert sorted(group_tasks(around(3, [0, 1, 2]), 7, 0)) == [0, 1, 2]
    assert len(set(group_tasks([np.zeros((3, 2), np.float32)] * 4, 3, 0))) == 1


def test_each_layer_is_clustered_by_itself_and_alone_a_task_keeps_its_adapter():
    first, second = around(2, [0, 0, 1], seed=1), around(2, [1, 0, 0], seed=2)
    tau = {t: {"a": first[n], "b": second[n]} for n, t in enumerate((0, 4, 5))}

    changed = consolidate(tau, 2, 0.1, seed=3)

    groups = {
        name: [int(changed[f"meta/groups/{task}"][name]) for task in tau]
        for name in "ab"
    }
    assert groups["a"][0] == groups["a"][1] != groups["a"][2]
    assert groups["b"][0] != groups["b"][1] == groups["b"][2]
    for task, alone in ((5, "a"), (0, "b")):
        assert dense(changed[f"adapters/{task}"][alone]).tolist() == (
            tau[task][alone].tolist()
        )
        assert alone not in local_of(changed, task)
    assert changed["adapters/0"]["a"].nnz == 0, "all of it is shared"
    expected = (tau[0]["a"] + tau[4]["a"]) / 2  # of two: the middle
    np.testing.assert_allclose(dense(local_of(changed, 4)["a"]), expected, rtol=1e-6)


# ---- when tasks are consolidated


def test_adapters_are_consolidated_after_every_s_new_tasks():
    apd = learner(tasks=5, epochs=1, consolidate_every=2, groups=1, gap=0.5)
    clustered = []
    state = lived(
        apd, 5, lambda s: clustered.append(sum(g.startswith("meta/groups/") for g in s))
    )
    assert clustered == [0, 2, 2, 4, 4]

    again = TaskStage(round=6, task=1, starts_task=False, ends_task=True)
    visited, _ = apd.train(Turn(state, {}, again, data(2)))
    before, after = ({g: s[g] for g in shared_groups(s)} for s in (state, visited))
    assert exact(after) == exact(before), "no task is new"


def test_each_consolidation_may_have_k_groups_more():
    apd = learner(tasks=6, epochs=1, consolidate_every=3, groups=2, gap=10.0)
    states = []
    lived(apd, 6, states.append)
    seen = [
        len({int(states[last][f"meta/groups/{t}"][W]) for t in range(last + 1)})
        for last in (2, 5)
    ]
    assert seen == [2, 4]


def test_the_next_consolidation_begins_with_the_whole_adapters():
    given = {"tasks": 4, "threshold": 0.0, "lambda1": 0.0, "epochs": 1}
    alone = lived(learner(**given), 4)
    state = lived(learner(**given, consolidate_every=2, groups=1, gap=0.02), 4)
    for task in range(4):
        # Two consolidations, and what each moved the training after it.
        assert np.abs(whole(state, task) - whole(alone, task)).max() <= 4 * 0.02


def test_a_task_that_was_never_ended_is_consolidated_when_the_next_one_begins():
    apd = learner(consolidate_every=2, groups=1)
    state, _ = apd.train(Turn(lived(apd, 1), {}, stage(1, ends_task=False), data(2)))
    assert "meta/groups/1" not in state
    state, _ = apd.train(Turn(state, {}, stage(2, ends_task=False), data(3)))
    assert {"meta/groups/0", "meta/groups/1"} <= state.keys()
    assert "meta/groups/2" not in state


def test_a_consolidation_drops_what_was_shared_and_has_a_seed_of_the_clients(
    monkeypatch,
):
    seeds = []

    def found(adapters, count, gap, seed):
        seeds.append(seed)
        number = np.asarray(len(adapters))
        known = {f"meta/groups/{task}": {W: number} for task in adapters}
        return {**known, f"local/{number}": {W: np.zeros((6, 4), np.float32)}}

    monkeypatch.setattr("clients.apd.consolidate", found)
    given = {"tasks": 4, "epochs": 1, "consolidate_every": 2, "groups": 1}
    assert shared_groups(lived(learner(**given), 4)) == {"local/4"}
    for client in (1, 1):
        lived(learner(client, **given), 2)
    first, later, second, again = seeds
    assert len({first, later, second}) == 3
    assert second == again


# ---- whole runs


@pytest.mark.soak
@pytest.mark.run
def test_it_forgets_nothing_and_consolidation_makes_it_smaller(tmp_path):
    found = {}
    for name, own in {"apd": {}, "apart": {"strategy.consolidate_every": 0}}.items():
        shape = {"clients": 1, "tasks": 5, "epochs": 5, "learning_rate": 3e-3}
        run_in_process(tiny(tmp_path / name, strategy="apd", **shape, **own))
        found[name] = summary_of(tmp_path / name)
    accuracy = {name: one["average_accuracy"] for name, one in found.items()}
    assert accuracy["apd"] > 0.97
    assert found["apd"]["forgetting"] < 0.01
    assert abs(accuracy["apd"] - accuracy["apart"]) < 0.01
    assert found["apd"]["model_bytes"] < 0.95 * found["apart"]["model_bytes"]
    assert found["apd"]["nominal_bytes_up"] == 0


def test_as_many_groups_as_tasks_are_refused():
    sentence = r"strategy\.groups: got 3, expected less than strategy\.consolidate_ever"
    with pytest.raises(ConfigError, match=sentence):
        algorithm("apd").params({"groups": 3, "consolidate_every": 3})
    algorithm("apd").params({"groups": 3, "consolidate_every": 4})


def test_a_model_without_weights_is_refused():
    body = nn.Sequential(nn.Flatten())
    model = MultiHeadModel(
        body, features=4, input_shape=(4,), tasks=1, classes=2, single_head=False
    )
    with pytest.raises(ConfigError, match="APD decomposes nothing else"):
        Apd(ApdParams(), model, place())
