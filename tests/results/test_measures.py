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


def test_average_accuracy_is_the_mean_of_the_last_row():
    assert measures.average_accuracy(ONE) == pytest.approx((0.6 + 0.7 + 0.4) / 3)


def test_forgetting_is_measured_against_the_best_earlier_accuracy():
    assert measures.forgetting(ONE) == pytest.approx(((0.9 - 0.6) + (0.5 - 0.7)) / 2)


def test_forgetting_ignores_the_last_row_when_it_looks_for_the_best():
    np.testing.assert_allclose(measures.forgetting_per_task(ONE), [[0.3, -0.2]])


def test_backward_transfer_is_measured_against_the_accuracy_when_learned():
    expected = ((0.6 - 0.8) + (0.7 - 0.5)) / 2
    assert measures.backward_transfer(ONE) == pytest.approx(expected)


def test_learning_accuracy_is_the_mean_of_the_diagonal():
    assert measures.learning_accuracy(ONE) == pytest.approx((0.8 + 0.5 + 0.4) / 3)


def test_sample_accuracy_counts_every_sample_once():
    counts = np.array([[10, 30, 60], [40, 10, 50]])
    # After task 2 only the first client was tested.
    expected = [
        (10 * 0.8 + 40 * 0.2) / 50,
        (10 * 0.9 + 30 * 0.5 + 40 * 0.1 + 10 * 0.3) / 90,
        (10 * 0.6 + 30 * 0.7 + 60 * 0.4) / 100,
    ]
    np.testing.assert_allclose(measures.sample_accuracy(BOTH, counts), expected)


def test_sample_accuracy_is_unknown_where_no_sample_was_tested():
    counts = np.array([[10, 30, 60]])
    seen = measures.sample_accuracy(GONE, counts)
    np.testing.assert_allclose(seen, [0.2, (10 * 0.1 + 30 * 0.3) / 40, NAN])
    none = measures.sample_accuracy(ONE, np.array([[0, 30, 60]]))
    np.testing.assert_allclose(none, [NAN, 0.5, (30 * 0.7 + 60 * 0.4) / 90])
    with pytest.raises(ValueError, match=r"counts has shape \(3,\), expected \(1, 3\)"):
        measures.sample_accuracy(ONE, np.array([1, 2, 3]))


def test_one_task_cannot_be_forgotten():
    single = np.array([[[0.4]], [[0.8]]])
    assert measures.average_accuracy(single) == pytest.approx(0.6)
    assert measures.learning_accuracy(single) == pytest.approx(0.6)
    assert measures.forgetting(single) == 0.0
    assert measures.backward_transfer(single) == 0.0
    assert measures.forgetting_per_task(single).shape == (2, 0)


def test_a_client_that_vanished_is_left_out_and_is_not_zero():
    for measure in (
        measures.average_accuracy,
        measures.forgetting,
        measures.backward_transfer,
    ):
        assert measure(BOTH) == pytest.approx(measure(ONE))


def test_a_vanished_client_still_counts_for_what_it_learned():
    alone, gone = measures.learning_accuracy(ONE), (0.2 + 0.3) / 2
    assert measures.learning_accuracy(BOTH) == pytest.approx((alone + gone) / 2)


def test_every_client_weighs_the_same_however_many_tasks_were_measured():
    partly = np.array([[[0.2, NAN], [NAN, 0.4]], [[0.6, NAN], [0.8, 1.0]]])
    # Client 0 has only task 1 at the end: (0.4 + (0.8 + 1.0) / 2) / 2.
    assert measures.average_accuracy(partly) == pytest.approx(0.65)


def test_nothing_measured_is_nan_without_a_warning():
    nothing = np.full((2, 3, 3), NAN)
    assert math.isnan(measures.average_accuracy(nothing))
    assert math.isnan(measures.forgetting(nothing))
    assert math.isnan(measures.backward_transfer(nothing))
    assert math.isnan(measures.learning_accuracy(nothing))


def test_transfer_gain_by_hand():
    federated = np.array(
        [[[0.5, NAN], [0.6, 0.9]], [[0.5, NAN], [0.4, 0.5]], [[0.5, NAN], [0.7, 0.7]]]
    )
    local_only = np.array(
        [[[0.9, NAN], [0.5, 0.6]], [[0.9, NAN], [0.4, 0.5]], [[0.9, NAN], [0.6, 0.8]]]
    )
    # Gains per client and task: (0.1, 0.3), (0, 0), (0.1, -0.1).
    gain = measures.transfer_gain(federated, local_only)
    np.testing.assert_allclose(gain.per_unit, [0.2, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(gain.per_task, [0.2 / 3, 0.2 / 3])
    assert gain.overall == pytest.approx(0.2 / 3)
    # Deviations from the mean: 4/30, -2/30, -2/30, so the variance is 24/900/2.
    assert gain.spread == pytest.approx(math.sqrt(24 / 900 / 2))
    # t(2 degrees of freedom) = 4.303.
    assert gain.margin == pytest.approx(4.302653 * math.sqrt(24 / 900 / 2 / 3))
    np.testing.assert_allclose(
        gain.per_task_spread, [math.sqrt(1 / 300), math.sqrt(0.13 / 3)]
    )


def test_transfer_gain_leaves_out_a_client_missing_on_one_side():
    gain = measures.transfer_gain(BOTH, np.concatenate([ONE - 0.1, ONE]))
    assert gain.overall == pytest.approx(0.1)
    assert math.isnan(gain.per_unit[1])
    assert math.isnan(gain.spread)
    assert math.isnan(gain.margin)


def test_the_margin_counts_only_measured_units():
    federated = np.array([[[0.5]], [[0.7]], [[NAN]]])
    local_only = np.array([[[0.4]], [[0.4]], [[0.4]]])
    gain = measures.transfer_gain(federated, local_only)
    assert gain.overall == pytest.approx(0.2)
    assert gain.spread == pytest.approx(math.sqrt(0.02))
    assert gain.margin == pytest.approx(12.706205 * 0.1)


@pytest.mark.parametrize("units", [2, 3, 11, 12, 500])
def test_the_margin_is_that_of_students_t(units):
    """However many units: a table that ended somewhere would be too wide beyond."""
    alone = np.zeros((units, 1, 1))
    federated = np.random.default_rng(units).normal(0.1, 0.02, alone.shape)
    gain = measures.transfer_gain(federated, alone)
    low, high = stats.ttest_1samp(federated.ravel(), 0).confidence_interval(0.95)
    assert [gain.overall - gain.margin, gain.overall + gain.margin] == pytest.approx(
        [low, high]
    )


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
    for measure in (
        measures.average_accuracy,
        measures.learning_accuracy,
        measures.forgetting,
        measures.backward_transfer,
    ):
        with pytest.raises(ValueError, match=message):
            measure(accuracy)


def test_transfer_gain_refuses_runs_of_different_shape():
    with pytest.raises(ValueError, match="same units and tasks"):
        measures.transfer_gain(ONE, BOTH)


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


def test_nothing_came_before_a_single_task():
    assert math.isnan(measures.forward_transfer(MET[:, :1, :1], ALONE[:, :1, :1]))


def test_other_tasks_cannot_be_compared():
    with pytest.raises(ValueError, match=r"accuracy has shape \(2, 3, 3\) and single"):
        measures.forward_transfer(MET, ALONE[:, :2, :2])


@pytest.mark.parametrize(
    ("alone", "known"),
    [
        ([measures.LearningCurve("x", True, ALONE)], True),
        ([measures.LearningCurve("y", True, ALONE)], False),  # other data
        ([measures.LearningCurve("x", False, ALONE)], False),
        (
            [
                measures.LearningCurve("x", True, ALONE),
                measures.LearningCurve("x", True, ALONE),
            ],
            False,
        ),  # which of the two?
        (
            [
                measures.LearningCurve("x", True, ALONE),
                measures.LearningCurve("y", True, MET),
            ],
            True,
        ),
        ([], False),
    ],
)
def test_a_run_is_held_against_the_one_run_of_its_single_tasks(alone, known):
    found, *others = measures.forward_transfers(
        [measures.LearningCurve("x", False, MET), *alone]
    )

    assert found == pytest.approx(
        measures.forward_transfer(MET, ALONE) if known else NAN, nan_ok=True
    )
    assert all(map(math.isnan, others[: len(alone)]))


def loops(accuracy):
    """Return the four measures with nothing but loops over what was measured."""

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
    measured = (
        measures.average_accuracy(accuracy),
        measures.learning_accuracy(accuracy),
        measures.forgetting(accuracy),
        measures.backward_transfer(accuracy),
    )
    np.testing.assert_allclose(measured, loops(accuracy.tolist()), rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), units=st.integers(2, 6))
def test_spread_agrees_with_numpy_where_all_is_measured(seed, units):
    values = np.random.default_rng(seed).random((units, 3))
    np.testing.assert_allclose(
        measures.spread_measured(values, axis=0), np.std(values, axis=0, ddof=1)
    )
