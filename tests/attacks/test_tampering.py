"""Hostile tensors by hand."""

import numpy as np
import pytest

from fcl_flower.attacks import noisy, overlaid, start_of, turned
from fcl_flower.core.types import SparseArray


def row(*values):
    return np.array(values, np.float32)


def some(values, places, size=3):
    return SparseArray((size,), np.array(places), row(*values))


@pytest.mark.parametrize(("factor", "expected"), [(1.0, [0, 3]), (10.0, [-9, 12])])
def test_a_change_goes_the_other_way_round(factor, expected):
    sent = {"base": {"w": row(2, 1), "seen": np.array(7)}, "meta": {"s": row(5)}}
    starts = {"base": {"w": row(1, 2), "seen": np.array(3)}}

    found = turned(sent, starts, factor)

    np.testing.assert_array_equal(found["base"]["w"], expected)
    assert found["base"]["w"].dtype == np.float32
    assert found["base"]["seen"] == 7
    assert found["meta"] is sent["meta"]


def test_of_a_sparse_tensor_the_entries_sent_are_turned():
    sent = {"base": {"w": some([5, 1], [0, 2])}}

    found = turned(sent, {"base": {"w": row(1, 9, 2)}}, 1.0)["base"]["w"]

    np.testing.assert_array_equal(found.indices, [0, 2])
    np.testing.assert_array_equal(found.values, [-3, 3])


def test_noise_is_standard_normal_and_of_the_groups_with_a_start():
    sent = {"base": {"w": np.full(4000, 5, np.float32)}, "meta": {"s": row(5)}}

    found = noisy(sent, {"base": sent["base"]}, np.random.default_rng(0))

    assert abs(found["base"]["w"].mean() - 5) < 0.1
    assert abs(found["base"]["w"].std() - 1) < 0.1
    assert found["meta"] is sent["meta"]


def test_noise_fills_a_sparse_tensor():
    sent = {"base": {"w": some([90] * 500, range(500), size=1000)}}

    start = {"base": {"w": np.full(1000, 50, np.float32)}}
    found = noisy(sent, start, np.random.default_rng(0))["base"]["w"]

    found.validate()
    assert found.nnz == 1000
    assert abs(found.values[:500].mean() - 90) < 0.2
    assert abs(found.values[500:].mean() - 50) < 0.2
    assert abs(found.values[500:].std() - 1) < 0.1


def test_of_several_models_an_update_started_from_the_nearest():
    known = {"base/0": {"w": row(0, 0)}, "base/1": {"w": row(9, 9)}, "heads": {}}

    assert start_of("base", {"w": row(8, 8)}, [known]) is known["base/1"]
    assert start_of("base/0", {"w": row(8, 8)}, [known]) is known["base/0"]


def test_where_nothing_of_the_kind_is_known_the_next_is_asked():
    first, last = {"heads": {"w": row(1)}}, {"base": {"w": row(2)}}

    assert start_of("base", {"w": row(5)}, [first, last]) is last["base"]
    assert start_of("base", {"w": row(5, 5)}, [first, last]) is None
    assert start_of("base", {"v": row(5)}, [first, last]) is None


def test_what_is_received_in_part_lies_over_what_was_kept():
    kept = {"base": {"w": row(1, 2, 3), "v": row(4)}, "masks": {"m": row(5)}}

    found = overlaid(kept, {"base": {"w": some([9], [1])}, "new": {"x": row(6)}})

    np.testing.assert_array_equal(found["base"]["w"], [1, 9, 3])
    np.testing.assert_array_equal(found["base"]["v"], [4])
    assert found.keys() == {"base", "masks", "new"}
