"""How many samples of which class each client of FedCBDR keeps."""

from collections import Counter

import numpy as np
import pytest

from strategies.fedcbdr import evenly, in_proportion, quotas


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


def test_no_client_keeps_more_than_it_has():
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = {k: rng.integers(0, 9, 6) for k in range(4)}
        samples = int(rng.integers(0, 20))
        found = quotas(counts, samples, seed=0)
        assert all((found[k] <= counts[k]).all() for k in counts)
        total = sum(int(shares.sum()) for shares in found.values())
        have = sum(int(numbers.sum()) for numbers in counts.values())
        assert total == min(4 * samples, have)


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
