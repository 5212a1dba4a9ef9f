"""Values as levels of a scale: bounds, means over seeds, and hostile scales."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.federation.codec import LEVELS, Encoded, decode, encode

PRECISIONS = list(LEVELS)
steady = settings(derandomize=True, deadline=None, max_examples=200)
tensors = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    elements=st.floats(-1e6, 1e6, width=32),
)


def scale_of(tensor, precision):
    return np.abs(tensor).max(initial=0) / LEVELS[precision]


@steady
@given(
    tensors,
    st.sampled_from(PRECISIONS),
    st.one_of(st.none(), st.integers(0, 2**40)),
    st.booleans(),
)
def test_a_value_moves_by_less_than_the_scale(tensor, precision, seed, compress):
    made = encode(tensor, precision, seed=seed, compress=compress)
    read = decode(made)
    assert (read.shape, read.dtype) == (tensor.shape, np.float32)
    scale = scale_of(tensor, precision)
    allowed = (0.5 if seed is None else 1) * scale * (1 + 1e-5) + 1e-40
    assert np.all(np.abs(read - tensor) <= allowed)


@steady
@given(tensors, st.sampled_from(PRECISIONS))
def test_the_nearest_level_is_never_further_than_zero(tensor, precision):
    read = decode(encode(tensor, precision))
    assert np.all(np.abs(read - tensor) <= np.abs(tensor) * (1 + 1e-5))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_levels_are_those_of_the_scale_by_hand(precision):
    most = LEVELS[precision]
    tensor = np.array([[2.0 * most, 1.1, -1.1, -2.0 * most]], np.float32)
    made = encode(tensor, precision)
    levels = np.array([most, 1, -1, -most], "i1").tobytes()
    assert made.data == struct.pack("<f", 2.0) + levels
    assert decode(made).tolist() == [[2.0 * most, 2, -2, -2.0 * most]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_drawn_levels_have_the_value_as_their_mean(precision):
    tensor = np.array([1.0, 0.3, -0.77, 0.001, 0], np.float32)
    read = [decode(encode(tensor, precision, seed=seed)) for seed in range(4000)]
    scale = scale_of(tensor, precision)
    assert np.all(np.abs(np.mean(read, axis=0) - tensor) < 4 * scale / 4000**0.5)
    assert len({r.tobytes() for r in read}) > 1


def test_a_sparse_tensor_keeps_entries_whose_level_is_zero():
    tensor = SparseArray((9,), np.array([1, 4]), np.array([100, 0.01], np.float32))
    read = decode(encode(tensor, "int8"))
    assert read.indices.tolist() == [1, 4]
    assert read.values.tolist() == [100, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_the_receiver(value):
    made = encode(np.array([[1, value]], np.float32), "int8")
    with pytest.raises(WireError, match="scale of int8 must be finite"):
        decode(made)


def with_scale(scale, levels=b"\x01\x02", precision="int8"):
    data = struct.pack("<f", scale) + levels
    return Encoded("float32", (len(levels),), f"fcl.dense+{precision}", data)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (with_scale(float("nan")), "finite, not nan"),
        (with_scale(float("inf")), "finite, not inf"),
        (with_scale(-1.0), "finite, not -1"),
        (with_scale(1.0, b"\x80"), r"int8 must lie in \[-127, 127\]"),
        (with_scale(1.0, b"\x08", "int4"), r"int4 must lie in \[-7, 7\]"),
        (with_scale(1.0, b"\xf8", "int4"), r"int4 must lie in \[-7, 7\]"),
        (with_scale(1.0, b"\x02", "ternary"), r"ternary must lie in \[-1, 1\]"),
        (Encoded("float32", (0,), "fcl.dense+int8", b"\0\0"), "too few for a scale"),
        (Encoded("float32", (2,), "fcl.dense+int8", bytes(5)), "cannot fill shape"),
        (Encoded("float64", (1,), "fcl.dense+int8", bytes(5)), "holds float32"),
        (Encoded("int8", (1,), "fcl.dense+ternary", bytes(5)), "holds float32"),
    ],
    ids=range(11),
)
def test_a_hostile_scale_or_level_is_refused(made, why):
    with pytest.raises(WireError, match=why):
        decode(made)
