"""APD's consolidation: by hand, against the best of all partitions, and as a value."""

from itertools import product

import numpy as np
import pytest

from clients.apd import consolidate, group_tasks, local_of, split_group
from fcl_flower.core.types import SparseArray
from fcl_flower.training.tensors import dense


def around(centres, of, seed=0, spread=0.01):
    """Return tau of tasks, shape (3, 2), near one of some random centres each."""
    draw = np.random.default_rng(seed)
    middle = draw.normal(size=(centres, 3, 2))
    tasks = [middle[n] + spread * draw.normal(size=(3, 2)) for n in of]
    return [tau.astype(np.float32) for tau in tasks]


def test_what_lies_within_the_gap_becomes_one_entry_that_all_share():
    tau = [np.float32([1.0, 0.0, 5.0, -3.0]), np.float32([1.5, 0.0, 9.0, 1.0])]
    tau.append(np.float32([1.25, 0.0, 6.0, -3.5]))

    local, left = split_group(tau, gap=0.5)

    # Entry 0: 1.5 - 1 = 0.5 is within the gap, and (1.5 + 1) / 2 = 1.25.
    assert local.tolist() == [1.25, 0, 0, 0]
    assert [values.tolist() for values in left] == [
        [0, 0, 5, -3],
        [0, 0, 9, 1],
        [0, 0, 6, -3.5],
    ]
    assert local.dtype == left[0].dtype == np.float32
    assert tau[0].tolist() == [1, 0, 5, -3], "given values stay"


def test_the_middle_of_the_extremes_is_shared_and_not_the_mean():
    local, _ = split_group([np.float32([v]) for v in (0.0, 0.0, 0.0, 1.0)], gap=1.0)
    assert local.tolist() == [0.5]


def test_without_a_gap_only_equal_entries_are_shared_and_nothing_is_lost():
    tau = [np.float32([2, 3, 0]), np.float32([2, 4, 0])]
    local, left = split_group(tau, gap=0.0)
    assert local.tolist() == [2, 0, 0]
    assert [(local + values).tolist() for values in left] == [[2, 3, 0], [2, 4, 0]]


@pytest.mark.parametrize("seed", range(4))
def test_the_groups_have_the_least_squares_of_all_partitions(seed):
    tau = around(2, [0, 1, 0, 0, 1, 1], seed)
    points = np.stack([values.reshape(-1) for values in tau]).astype(np.float64)

    def squares(labels):
        parts = [points[[n == g for n in labels]] for g in set(labels)]
        return sum(np.square(part - part.mean(0)).sum() for part in parts)

    best = min(squares(labels) for labels in product(range(2), repeat=6))

    assert squares(group_tasks(tau, 2, seed)) == pytest.approx(best, rel=1e-5)


def test_more_coordinates_than_tasks_and_more_tasks_than_coordinates():
    wide = [np.float32([[1] * 50]), np.float32([[9] * 50]), np.float32([[1.1] * 50])]
    found = group_tasks(wide, 2, 0)
    assert found[0] == found[2] != found[1]
    narrow = [np.float32([[v]]) for v in (1, 9, 1.1, 9.2, 1.2)]
    found = group_tasks(narrow, 2, 0)
    assert found[0] == found[2] == found[4] != found[1] == found[3]


def test_there_are_no_more_groups_than_tasks_and_empty_ones_are_one():
    tau = around(3, [0, 1, 2])
    assert sorted(group_tasks(tau, 7, 0)) == [0, 1, 2]
    assert len(set(group_tasks([0 * tau[0]] * 4, 3, 0))) == 1


def groups(changed, name, tasks):
    return [int(changed[f"meta/groups/{task}"][name]) for task in tasks]


def test_each_layer_is_clustered_by_itself_and_alone_a_task_keeps_its_adapter():
    first = around(2, [0, 0, 1], seed=1)
    second = around(2, [1, 0, 0], seed=2)
    tau = {t: {"a": first[n], "b": second[n]} for n, t in enumerate((0, 4, 5))}

    changed = consolidate(tau, 2, 0.1, seed=3)

    one, two, three = groups(changed, "a", tau)
    assert one == two != three
    one, two, three = groups(changed, "b", tau)
    assert one != two == three
    for task, alone in ((5, "a"), (0, "b")):
        np.testing.assert_array_equal(
            dense(changed[f"adapters/{task}"][alone]), tau[task][alone]
        )
        assert alone not in local_of(changed, task)
    for task, name in product(tau, "ab"):
        local = local_of(changed, task)
        assert isinstance(changed[f"adapters/{task}"][name], SparseArray)
        whole = dense(changed[f"adapters/{task}"][name])
        whole = whole + (dense(local[name]) if name in local else 0)
        assert np.abs(whole - tau[task][name]).max() <= 0.05 + 1e-6
    assert changed["adapters/0"]["a"].nnz == 0, "all of it is shared"
    shared = changed[f"local/{groups(changed, 'a', tau)[0]}"]["a"]
    expected = (tau[0]["a"] + tau[4]["a"]) / 2  # of two: the middle
    np.testing.assert_allclose(dense(shared), expected, rtol=1e-6)


def test_the_same_seed_gives_the_same_groups():
    tau = {t: {"a": v} for t, v in enumerate(around(6, range(6), spread=0.0))}
    found = {tuple(groups(consolidate(tau, 3, 0.1, s), "a", tau)) for s in (5, 5, 5)}
    others = {tuple(groups(consolidate(tau, 3, 0.1, s), "a", tau)) for s in range(20)}
    assert len(found) == 1
    assert len(others) > 1
