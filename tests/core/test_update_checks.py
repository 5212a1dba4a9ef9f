import numpy as np
import pytest

from fcl_flower.core import update_checks
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray

W = np.zeros((2, 3), np.float32)
EXPECTED = {"base": {"w": W, "b": np.zeros(2, np.float32)}}


def sparse(value=1.0, shape=(2, 3), dtype=np.float32):
    return SparseArray(shape, np.array([1]), np.array([value], dtype))


def base(**changed):
    return {"base": {**EXPECTED["base"], **changed}}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_value_that_is_not_finite_is_refused_by_name(value, dtype):
    dense = np.array([0, value, 1], dtype)
    with pytest.raises(WireError, match="base/w"):
        update_checks.finite({"base": {"v": W, "w": dense}})
    with pytest.raises(WireError, match="adapters/w"):
        update_checks.finite({"adapters": {"w": sparse(value, dtype=dtype)}})


@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_value_among_many_is_found(place):
    values = np.ones(1001, np.float32)
    values[place] = np.nan
    with pytest.raises(WireError, match="base/w"):
        update_checks.finite({"base": {"w": values.reshape(7, 143)}})


@pytest.mark.parametrize(
    "bits",
    [np.uint16(0x7D00), np.uint32(0x7FA00000), np.uint64(0x7FF4000000000000)],
)
def test_a_signalling_nan_is_refused_without_a_warning(bits):
    values = np.array([0, bits], bits.dtype).view(f"f{bits.itemsize}")
    with pytest.raises(WireError, match="base/w"):
        update_checks.finite({"base": {"w": values}})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_whose_squares_are_beyond_all_numbers_are_finite(dtype):
    largest = np.full(3, np.finfo(dtype).max)
    update_checks.finite({"base": {"w": largest, "v": -largest}})
    with pytest.raises(WireError, match="base/w"):
        update_checks.finite({"base": {"w": np.append(largest, dtype(np.inf))}})


def test_whole_numbers_and_truth_values_are_finite():
    update_checks.finite({"g": {"n": np.array([2**62]), "t": np.array([True])}})
    update_checks.finite(
        {"g": {"w": W, "s": sparse(), "e": np.zeros(0), "z": np.asarray(1.0)}}
    )


@pytest.mark.parametrize("value", [1e200, -1e308])
def test_a_norm_beyond_all_numbers_is_refused_without_a_warning(value):
    with pytest.raises(WireError, match=r"norm: .* at most 10 by .*, got inf"):
        update_checks.norm({"base": {"w": np.array([value])}}, 1.0, limit=10)


def test_the_expected_tensors_are_accepted():
    update_checks.same_tensors(base(w=np.ones((2, 3), np.float32)), EXPECTED)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({}, "groups"),
        ({**base(), "more": {}}, "more"),
        ({"Base": EXPECTED["base"]}, "Base"),
        ({"base": {"w": W}}, "base: .*'b'"),
        (base(x=W), "base: .*'x'"),
        (base(w=W.T), r"base/w: .*\(2, 3\).*\(3, 2\)"),
        (base(w=W.reshape(6)), "base/w"),
        (base(w=W.astype(np.float64)), "base/w: .*float32.*float64"),
        (base(w=sparse()), "base/w: .*dense"),
        (base(b=np.asarray(np.float32(0))), "base/b"),
    ],
)
def test_anything_but_the_expected_tensors_is_refused(payload, named):
    with pytest.raises(WireError, match=named):
        update_checks.same_tensors(payload, EXPECTED)


def test_some_of_the_expected_tensors_may_be_left_out():
    update_checks.fits("base", {"w": sparse()}, EXPECTED["base"], sparse=True)
    update_checks.fits("base", {}, EXPECTED["base"], sparse=True)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": sparse()}, "adapters/x: unknown"),
        ({"w": W}, "adapters/w: expected a sparse"),
        ({"w": sparse(shape=(3, 2))}, "adapters/w"),
        ({"w": sparse(dtype=np.float16)}, "adapters/w"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arrays, named):
    with pytest.raises(WireError, match=named):
        update_checks.fits("adapters", arrays, EXPECTED["base"], sparse=True)


@pytest.mark.parametrize("count", [1, 2**15, 2**15 + 1, 3 * 2**15 - 7])
def test_the_norm_is_of_all_values_however_many(count):
    payload = {"base": {"w": np.full((count, 1), 3.0, np.float32), "z": np.zeros(())}}
    found = 3.0 * np.sqrt(count)

    update_checks.norm(payload, 1.0, limit=found * 1.0001)
    with pytest.raises(WireError, match=f"got {found:.3g}"):
        update_checks.norm(payload, 1.0, limit=found * 0.9999)


def test_the_measure_is_the_norm_of_the_base_alone_and_one_at_least():
    state = {"base": {"w": W + 3}, "base/1": {"w": W + 4}, "adapters/0": {"w": W + 9}}

    found = update_checks.base_norm(state)

    # Six entries each: the square root of 6 * 9 + 6 * 16.
    assert found == pytest.approx(np.sqrt(150))
    assert update_checks.base_norm({"base": {"w": W + 0.1}}) == 1
    assert update_checks.base_norm({}) == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_large_values_whose_squares_overflow_are_finite(dtype):
    largest = np.finfo(dtype).max
    update_checks.finite({"base": {"w": np.array([largest, -largest], dtype)}})


def test_nan_is_found_and_infinity_may_stand_for_nothing_known():
    update_checks.no_nan({"optimizer": {"best": np.array(np.inf)}, "n": {"i": W > 0}})
    for wrong in (np.array([0, np.nan]), sparse(np.nan)):
        with pytest.raises(WireError, match="heads/w: holds NaN"):
            update_checks.no_nan({"heads": {"w": wrong}})
