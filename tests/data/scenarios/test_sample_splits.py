"""A task's samples dealt to all clients, evenly or by a Dirichlet distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import NOWHERE, by_task, draw, learned, write_images

from fcl_flower.data.partition import split_dirichlet
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios import registry


def build(split, root=NOWHERE, **changes):
    usual = {"clients": 4, "tasks": 2, "public_fraction": 0.0}
    return draw("class-incremental", root, split=split, **{**usual, **changes})


def counts(tasks, source):
    """Return how many samples of each class each client has, shape (clients, 10)."""
    y = source.train.y
    return np.array([np.bincount(y[learned(t)], minlength=10) for t in tasks])


# ---- the cut itself


@settings(max_examples=50, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    parts=st.integers(1, 8),
    beta=st.sampled_from([1e-300, 1e-3, 0.1, 0.5, 1.0, 30.0, 1e6]),
    seed=st.integers(0, 2**32),
)
def test_parts_of_a_dirichlet_cut_are_disjoint_and_cover_all(labels, parts, beta, seed):
    y = np.array(labels)
    found = split_dirichlet(y, parts, beta, np.random.default_rng(seed))
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(len(y)))
    assert all(part.tolist() == sorted(part.tolist()) for part in found)


@settings(max_examples=30, deadline=None)
@given(beta=st.sampled_from([0.05, 0.5, 2.0]), seed=st.integers(0, 2**32))
def test_a_part_with_its_even_share_gets_none_of_the_classes_that_follow(beta, seed):
    y = np.repeat(np.arange(6), 50)
    found = split_dirichlet(y, 5, beta, np.random.default_rng(seed))
    table = np.array([np.bincount(y[part], minlength=6) for part in found])
    for label in range(1, 6):
        full = table[:, :label].sum(axis=1) >= 300 / 5
        assert not table[full, label].any()


@pytest.mark.parametrize("beta", [0.1, 1.0, 20.0])
def test_shares_of_a_class_are_as_uneven_as_the_distribution_says(beta):
    rng = np.random.default_rng(0)
    sums = []
    for _ in range(1500):
        parts = split_dirichlet(np.zeros(2000, np.int64), 5, beta, rng)
        sums.append(sum((len(part) / 2000) ** 2 for part in parts))
    # The second moment of a symmetric Dirichlet distribution over n: n E[p^2].
    assert np.mean(sums) == pytest.approx((1 + beta) / (1 + 5 * beta), abs=0.02)


def test_no_part_has_more_than_another_on_average():
    # Of three samples, cut always in the same order, the middle parts get more.
    rng = np.random.default_rng(0)
    y = np.zeros(3, np.int64)
    sizes = np.array(
        [[len(part) for part in split_dirichlet(y, 4, 1.0, rng)] for _ in range(4000)]
    )
    assert sizes.mean(axis=0) == pytest.approx([0.75] * 4, abs=0.04)


# ---- the plan


def test_even_shares_differ_by_at_most_one_sample_of_a_class_and_in_all():
    source = load_dataset("digits", NOWHERE)
    for tasks in by_task(build("iid", clients=7)):
        table = counts(tasks, source)
        assert (np.ptp(table, axis=0) <= 1).all()
        assert np.ptp(table.sum(axis=1)) <= 1


def test_what_is_left_over_of_tasks_goes_to_different_clients(tmp_path):
    write_images(tmp_path, "odd", np.repeat(np.arange(20), 5))
    plan = build("iid", tmp_path, datasets=["odd"], tasks=20)
    sizes = np.array([[len(learned(task)) for task in ts] for ts in by_task(plan)])
    assert (np.sort(sizes) == [1, 1, 1, 2]).all()
    assert (sizes == 2).sum(axis=0).max() < 12


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.5"])
def test_the_same_seed_gives_the_same_shares_and_another_one_others(split):
    first = build(split).to_dict()
    registry._build.cache_clear()
    assert build(split).to_dict() == first
    assert build(split, seed=8).to_dict()["clients"] != first["clients"]


def test_shares_are_drawn_for_each_task_anew():
    source = load_dataset("digits", NOWHERE)
    first, second = (counts(ts, source) for ts in by_task(build("dirichlet:0.1")))
    sizes = [
        [sorted(table[:, label].tolist()) for label in np.flatnonzero(table.any(0))]
        for table in (first, second)
    ]
    assert sizes[0] != sizes[1]
