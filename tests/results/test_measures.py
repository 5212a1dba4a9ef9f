"""Measures against numbers worked out by hand and against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fcl_flower.results import measures

NAN = math.nan

# One client, three tasks. Task 0: learned at 0.8, best before the end 0.9, ends at 0.6.
# Task 1: learned at 0.5, best before the end 0.5, ends at 0.7. Task 2: learned at 0.4.
ONE = np.array([[[0.8, NAN, NAN], [0.9, 0.5, NAN], [0.6, 0.7, 0.4]]])
# A second client that vanished after task 1.
GONE = np.array([[[0.2, NAN, NAN], [0.1, 0.3, NAN], [NAN, NAN, NAN]]])
BOTH = np.concatenate([ONE, GONE])

FOUR = (
    *(measures.average_accuracy, measures.learning_accuracy),
    *(measures.forgetting, measures.backward_transfer),
)


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        (
            ONE,
            (
                *((0.6 + 0.7 + 0.4) / 3, (0.8 + 0.5 + 0.4) / 3),
                *(((0.9 - 0.6) + (0.5 - 0.7)) / 2, ((0.6 - 0.8) + (0.7 - 0.5)) / 2),
            ),
        ),
        # Who vanished counts for what it learned, and for nothing at the end.
        (BOTH, (1.7 / 3, (1.7 / 3 + 0.5 / 2) / 2, 0.05, 0.0)),
        (np.array([[[0.4]], [[0.8]]]), (0.6, 0.6, 0.0, 0.0)),  # nothing to forget
        (np.full((2, 3, 3), NAN), (NAN,) * 4),
        # Every client weighs the same: (0.4 + (0.8 + 1.0) / 2) / 2.
        (
            np.array([[[0.2, NAN], [NAN, 0.4]], [[0.6, NAN], [0.8, 1.0]]]),
            (0.65, (0.3 + 0.8) / 2, (-0.2), 0.2),
        ),
    ],
)
def test_measures_by_hand(accuracy, expected):
    found = [measure(accuracy) for measure in FOUR]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_sample_accuracy_counts_every_sample_once():
    counts = np.array([[10, 30, 60], [40, 10, 50]])
    # After task 2 only the first client was tested.
    expected = [
        (10 * 0.8 + 40 * 0.2) / 50,
        (10 * 0.9 + 30 * 0.5 + 40 * 0.1 + 10 * 0.3) / 90,
        (10 * 0.6 + 30 * 0.7 + 60 * 0.4) / 100,
    ]
    np.testing.assert_allclose(measures.sample_accuracy(BOTH, counts), expected)
    none = measures.sample_accuracy(ONE, np.array([[0, 30, 60]]))
    np.testing.assert_allclose(none, [NAN, 0.5, (30 * 0.7 + 60 * 0.4) / 90])
    with pytest.raises(ValueError, match=r"counts has shape \(3,\), expected \(1, 3\)"):
        measures.sample_accuracy(ONE, np.array([1, 2, 3]))


def test_average_incremental_accuracy_is_no_mean_of_tasks_of_unequal_size():
    """Two clients; tasks of 50, 10 and 10 classes with one sample a class."""
    accuracy = np.array(
        [
            [[0.8, NAN, NAN], [0.4, 1.0, NAN], [0.2, 0.6, 1.0]],
            [[0.4, NAN, NAN], [0.2, 0.8, NAN], [0.2, 0.2, 0.6]],
        ]
    )
    counts = np.array([[25, 5, 5], [25, 5, 5]])
    right = [
        (20 + 10) / 50,
        (10 + 5 + 5 + 4) / 60,
        (5 + 3 + 5 + 5 + 1 + 3) / 70,
    ]

    seen = measures.sample_accuracy(accuracy, counts)

    np.testing.assert_allclose(seen, right)
    found = measures.average_incremental_accuracy(seen)
    assert found == pytest.approx((0.6 + 0.4 + 22 / 70) / 3)
    by_task = [np.nanmean(accuracy[:, t]) for t in range(3)]
    assert found < np.mean(by_task) - 0.05
    seen[1] = NAN
    assert np.isnan(measures.average_incremental_accuracy(seen))


def test_transfer_gain_by_hand():
    federated = np.array(
        [[[0.5, NAN], [0.6, 0.9]], [[0.5, NAN], [0.4, 0.5]], [[0.5, NAN], [0.7, 0.7]]]
    )
    local_only = np.array(
        [[[0.9, NAN], [0.5, 0.6]], [[0.9, NAN], [0.4, 0.5]], [[0.9, NAN], [0.6, 0.8]]]
    )
    # Gains per client and task: (0.1, 0.3), (0, 0), (0.1, -0.1).
    gain = measures.transfer_gain(federated, local_only)
    np.testing.assert_allclose(gain, [[0.1, 0.3], [0, 0], [0.1, -0.1]], atol=1e-12)


def test_transfer_gain_leaves_out_what_is_missing_on_one_side():
    gain = measures.transfer_gain(BOTH, np.concatenate([ONE - 0.1, ONE]))
    np.testing.assert_allclose(gain[0], 0.1)
    assert np.isnan(gain[1]).all()


# ---- pairs


@pytest.mark.parametrize("units", [2, 12, 500])
def test_pairs_are_tested_by_students_t(units):
    """However many units: a table that ended somewhere would be too wide beyond."""
    rng = np.random.default_rng(units)
    a, b = rng.normal(0.7, 0.05, units), rng.normal(0.65, 0.05, units)
    found, test = measures.paired((a - b).tolist()), stats.ttest_rel(a, b)
    assert found.pairs == units
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)
    assert found.difference == pytest.approx((a - b).mean())
    assert found.deviation == pytest.approx((a - b).std(ddof=1))
    low, high = test.confidence_interval(0.95)
    ends = [found.difference - found.margin, found.difference + found.margin]
    assert ends == pytest.approx([low, high])


def test_one_pair_or_equal_differences_say_nothing_of_chance():
    alone = measures.Paired(0.25, None, 1, None, None)
    assert measures.paired([0.25]) == alone
    assert measures.paired([0.25, 0.25]) == measures.Paired(0.25, 0.0, 2, None, 0.0)


@pytest.mark.parametrize(
    ("accuracy", "message"),
    [
        (np.zeros((3, 3)), "shape"),
        (np.zeros((2, 3, 2)), "shape"),
        (np.zeros((0, 1, 1)), "shape"),
        (np.array([[[51.2]]]), "fractions"),
        (np.array([[[-0.1]]]), "fractions"),
        (np.full((1, 2, 2), 0.5), "diagonal"),
    ],
)
def test_what_is_no_accuracy_array_is_refused(accuracy, message):
    for measure in FOUR:
        with pytest.raises(ValueError, match=message):
            measure(accuracy)


# ---- forward transfer

# Client 0 knows tasks 1 and 2 by 0.2 and 0.1 better than alone; client 1 task 1 by 0.4
# worse, and vanished then. The first task has nothing before it.
MET = np.array(
    [
        [[0.9, NAN, NAN], [0.1, 0.7, NAN], [0.1, 0.1, 0.6]],
        [[0.9, NAN, NAN], [0.1, 0.2, NAN], [NAN, NAN, NAN]],
    ]
)
ALONE = np.array(
    [
        [[0.4, NAN, NAN], [0.4, 0.5, NAN], [0.4, 0.5, 0.5]],
        [[0.4, NAN, NAN], [0.4, 0.6, NAN], [0.4, 0.6, 0.3]],
    ]
)


def test_forward_transfer_by_hand():
    expected = ((0.2 + 0.1) / 2 - 0.4) / 2
    assert measures.forward_transfer(MET, ALONE) == pytest.approx(expected)
    assert measures.forward_transfer(ALONE, MET) == pytest.approx(-expected)
    assert math.isnan(measures.forward_transfer(MET[:, :1, :1], ALONE[:, :1, :1]))


@pytest.mark.parametrize(
    "compared", [measures.forward_transfer, measures.transfer_gain]
)
def test_other_tasks_cannot_be_compared(compared):
    message = r"has shape \(2, 3, 3\) and .* \(2, 2, 2\), expected the same"
    with pytest.raises(ValueError, match=message):
        compared(MET, ALONE[:, :2, :2])


# ---- against loops


def loops(accuracy):
    """Work out the four measures with nothing but loops over what was measured."""

    def over_clients(terms_of_a_client):
        means = []
        for client in accuracy:
            terms = [x for x in terms_of_a_client(client) if not math.isnan(x)]
            if terms:
                means.append(sum(terms) / len(terms))
        return sum(means) / len(means) if means else NAN

    last = len(accuracy[0]) - 1

    def forgotten(client):
        for i in range(last):
            earlier = [client[t][i] for t in range(i, last)]
            earlier = [x for x in earlier if not math.isnan(x)]
            yield max(earlier) - client[last][i] if earlier else NAN

    return (
        over_clients(lambda a: a[last]),
        over_clients(lambda a: [a[i][i] for i in range(last + 1)]),
        over_clients(forgotten) if last else 0.0,
        over_clients(lambda a: [a[last][i] - a[i][i] for i in range(last)])
        if last
        else 0.0,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 4),
    tasks=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_measures_agree_with_plain_loops(seed, clients, tasks, missing):
    rng = np.random.default_rng(seed)
    accuracy = rng.random((clients, tasks, tasks))
    accuracy[rng.random(accuracy.shape) < missing] = NAN
    accuracy[:, *np.triu_indices(tasks, k=1)] = NAN
    found = [measure(accuracy) for measure in FOUR]
    np.testing.assert_allclose(found, loops(accuracy.tolist()), rtol=1e-12)
