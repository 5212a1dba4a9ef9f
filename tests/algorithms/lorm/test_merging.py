"""LoRM's equations, against least squares that NumPy solves directly."""

import numpy as np
import pytest

from strategies.analytic.sums import symmetric, upper_half
from strategies.lorm import (
    merged_change,
    merged_up,
    regmean,
)

INPUTS, OUTPUTS, RANK = 6, 4, 2


def drawn(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def clients(seed, count=3):
    """Return what entered a layer at each client, shape (inputs, tokens), and Gamma."""
    rng = np.random.default_rng(seed)
    # Of different directions and sizes, so that no plain mean will do.
    seen = [
        np.diag(rng.uniform(0.1, 3, INPUTS)) @ rng.normal(size=(INPUTS, 20 + 10 * k))
        for k in range(count)
    ]
    return seen, [x @ x.T for x in seen]


def nearest(seen, answers):
    """Return the W for which ``W X_k`` is nearest to the answers together."""
    x, y = np.concatenate(seen, 1), np.concatenate(answers, 1)
    return np.linalg.lstsq(x.T, y.T, rcond=None)[0].T


# ---- by hand


def test_an_input_that_nobody_has_had_gets_the_mean_weight():
    weights = [np.array([[1.0, 7.0]]), np.array([[3.0, 8.0]])]

    for grams in (
        [np.array([1.0, 0.0])] * 2,
        [np.diag([1.0, 0.0])] * 2,
    ):
        np.testing.assert_allclose(regmean(weights, grams), [[2.0, 7.5]])


# ---- one client


@pytest.mark.parametrize("size", [1e-4, 1e-8, 0.0])
def test_an_input_that_hardly_anybody_has_had_blows_nothing_up(size):
    seen, _ = clients(0)
    scale = np.array([1, size, 1, 1, 1, 1])
    grams = [(x @ x.T * np.outer(scale, scale)).astype(np.float32) for x in seen]
    weights = drawn(1, *[(OUTPUTS, INPUTS)] * 3)

    found = regmean(weights, grams)

    assert np.abs(found).max() < 10
    np.testing.assert_allclose(found[:, 1], np.mean(weights, 0)[:, 1], atol=0.1)


# ---- several: least squares


def test_merged_weights_answer_as_nearly_like_all_as_any_can():
    seen, grams = clients(0)
    weights = drawn(1, *[(OUTPUTS, INPUTS)] * 3)

    expected = nearest(seen, [w @ x for w, x in zip(weights, seen, strict=True)])

    np.testing.assert_allclose(regmean(weights, grams), expected, rtol=1e-8)


def test_so_does_a_merged_second_factor():
    seen, grams = clients(0)
    down, *ups = drawn(1, (RANK, INPUTS), *[(OUTPUTS, RANK)] * 3)

    expected = nearest(
        [down @ x for x in seen],
        [up @ down @ x for up, x in zip(ups, seen, strict=True)],
    )

    np.testing.assert_allclose(merged_up(ups, down, grams), expected, rtol=1e-8)


def test_so_does_a_merged_first_factor():
    seen, grams = clients(0)
    up, *downs = drawn(1, (OUTPUTS, RANK), *[(RANK, INPUTS)] * 3)
    # vec(B A X) = (X^T kron B) vec(A), column by column.
    design = np.concatenate([np.kron(x.T, up) for x in seen])
    answers = [(up @ a @ x).T.ravel() for a, x in zip(downs, seen, strict=True)]
    solved = np.linalg.lstsq(design, np.concatenate(answers), rcond=None)[0]

    expected = solved.reshape(INPUTS, RANK).T

    np.testing.assert_allclose(regmean(downs, grams), expected, rtol=1e-7)


def test_so_does_the_merged_change_of_several_tasks():
    seen, grams = clients(0)
    ups = drawn(1, *[(OUTPUTS, RANK)] * 3)
    downs = drawn(2, *[(RANK, INPUTS)] * 3)
    answers = [u @ a @ x for u, a, x in zip(ups, downs, seen, strict=True)]

    down, up = merged_change(downs, ups, grams)

    assert down.shape == (3 * RANK, INPUTS)
    np.testing.assert_allclose(up @ down, nearest(seen, answers), rtol=1e-8)


# ---- forms


def test_a_diagonal_is_a_matrix_whose_rest_is_zero():
    _, grams = clients(0)
    diagonals = [np.diag(gram) for gram in grams]
    full = [np.diag(diagonal) for diagonal in diagonals]
    weights = drawn(1, *[(OUTPUTS, INPUTS)] * 3)
    down, *ups = drawn(2, (RANK, INPUTS), *[(OUTPUTS, RANK)] * 3)
    changes = [down] * 3, ups

    for one, other in (
        (regmean(weights, diagonals), regmean(weights, full)),
        (merged_up(ups, down, diagonals), merged_up(ups, down, full)),
        (merged_change(*changes, diagonals)[0], merged_change(*changes, full)[0]),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_sums_are_in_double_precision():
    big, small = np.float32([[2**24]]), np.float32([[1]])
    grams = [np.ones(1, np.float32)] * 2

    assert regmean([big, small], grams).dtype == np.float64
    assert regmean([big, small], grams)[0, 0] == (2**24 + 1) / 2


def test_a_client_counts_as_much_as_its_inputs_are_large():
    found = regmean(
        [np.array([[1.0, 5.0]]), np.array([[3.0, 9.0]])],
        [np.array([1.0, 3.0]), np.array([3.0, 1.0])],
    )

    # (1 * 1 + 3 * 3) / 4 and (5 * 3 + 9 * 1) / 4.
    np.testing.assert_allclose(found, [[2.5, 6.0]])


def test_the_second_factor_counts_inputs_as_the_first_sees_them():
    down = np.array([[1.0, 2.0]])
    found = merged_up(
        [np.array([[1.0]]), np.array([[4.0]])],
        down,
        [np.array([2.0, 0.0]), np.array([0.0, 1.0])],
    )

    # A Gamma A^T is 2 and 4: (1 * 2 + 4 * 4) / 6.
    np.testing.assert_allclose(found, [[3.0]])


def test_half_a_matrix_holds_all_of_it():
    gram = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])

    assert upper_half(gram).tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(symmetric(upper_half(gram)), gram)


@pytest.mark.parametrize("diagonal", [True, False])
def test_of_one_client_its_own_weights_come_back(diagonal):
    _, (gram,) = clients(0, 1)
    gram = np.diag(gram) if diagonal else gram
    weight, up, down = drawn(1, (OUTPUTS, INPUTS), (OUTPUTS, RANK), (RANK, INPUTS))

    np.testing.assert_array_equal(regmean([weight], [gram]), weight)
    np.testing.assert_array_equal(merged_up([up], down, [gram]), up)
    found = merged_change([down], [up], [gram])
    np.testing.assert_allclose(found[0], down, rtol=1e-9)
    np.testing.assert_array_equal(found[1], up)


def test_more_inputs_than_tokens_still_leave_the_answers_right():
    (weight, x) = drawn(0, (OUTPUTS, INPUTS), (INPUTS, 3))

    found = regmean([weight], [x @ x.T])

    np.testing.assert_allclose(found @ x, weight @ x, rtol=1e-8)
