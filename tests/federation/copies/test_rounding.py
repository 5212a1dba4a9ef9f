"""Error feedback: what is sent adds up to what was wanted."""

import numpy as np
import pytest

from fcl_flower.core.types import SparseArray
from fcl_flower.federation.codec import WireFormat, decode
from fcl_flower.federation.copies import ErrorFeedback

RNG = np.random.default_rng(5)
WANTED = RNG.normal(size=(60, 8, 5)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "int4", "ternary"])
def test_the_sum_of_all_that_was_sent_is_that_of_all_that_was_wanted(dtype):
    rounding = ErrorFeedback(WireFormat(dtype, compress=True), {})
    sent = np.zeros((8, 5))
    for wanted in WANTED:
        made, read = rounding.difference("base", "w", wanted, seed=0)
        np.testing.assert_array_equal(decode(made), read)
        sent += read
    rest = rounding.kept()["rest/base"]["w"]
    np.testing.assert_allclose(sent + rest, WANTED.sum(0, np.float64), atol=1e-4)
    # Not the errors of 60 rounds, but about one: the rest does not grow.
    assert (
        np.abs(rest).max() < 12 * {"int8": 1 / 127, "int4": 1 / 7, "ternary": 1}[dtype]
    )


def test_without_feedback_nothing_is_kept_and_rounding_is_drawn():
    rounding = ErrorFeedback(WireFormat("int4", feedback=False), {})
    read = [rounding.difference("base", "w", WANTED[0], seed)[1] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(read[0], read[1])
    assert np.any(read[0] != read[2])
    assert rounding.kept() == {}


def test_entries_that_are_not_sent_keep_what_is_left_of_them():
    before = {"rest/base": {"w": np.full((2, 2), 0.5, np.float32)}}
    rounding = ErrorFeedback(WireFormat("ternary"), before)
    row = SparseArray.of_channels(np.full((2, 2), 3.5, np.float32), np.array([1]))

    _, read = rounding.difference("base", "w", row, seed=0)

    assert read.values.tolist() == [4, 4]
    assert rounding.kept()["rest/base"]["w"].tolist() == [[0.5, 0.5], [0, 0]]
    assert before["rest/base"]["w"].tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("feedback", [True, False])
def test_values_beyond_all_bounds_leave_finite_ones(feedback):
    rounding = ErrorFeedback(WireFormat("int8", feedback=feedback), {})
    bad = np.array([[np.nan, 3e38, np.inf, -np.inf]], np.float32)
    for _ in range(3):
        _, read = rounding.difference("base", "w", bad, seed=0)
        assert np.isfinite(read).all()
        assert read[0, 1] == pytest.approx(1e38, rel=0.02)
