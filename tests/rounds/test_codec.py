"""Round trips, sizes, rounding and hostile bytes of the codec.

Three oracles: the tensor that went in, bytes written by hand as the module's docstring
says, and torch's own rounding.
"""

import struct
import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak_of

from clients.fedweit.maths import rounded
from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.rounds.codec import (
    LEVELS,
    Encoded,
    compress,
    decode,
    decompress,
    encode,
    exact_levels,
    spec,
)

DTYPES = [
    *("float16", "float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
]
PRECISIONS = ["float32", "float16", "bfloat16"]
LAYOUTS = ["fcl.dense", "fcl.dense.bitmap", "fcl.sparse.bitmap"]
FORMS = [
    f"{layout}{suffix}{frame}"
    for layout in LAYOUTS
    for suffix in ("", "+float16", "+bfloat16", "+levels")
    for frame in ("", "+zstd")
]
RNG = np.random.default_rng(3)
steady = settings(derandomize=True, deadline=None, max_examples=300)


@st.composite
def arrays(draw, dtypes=DTYPES):
    """Return an array of any bit patterns, of which a drawn share stays zero."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = int(np.prod(shape))
    if dtype.kind == "b":
        flat = rng.random(size) < 0.5
    else:
        flat = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).copy()
    if dtype.kind == "f":
        special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], dtype)
        flat = np.where(rng.random(size) < 0.3, rng.choice(special, size), flat)
    flat = flat.astype(dtype).reshape(shape)
    present = draw(st.sampled_from([0, 0.02, 0.1, 0.5, 0.95, 1]))
    by_row = draw(st.booleans()) and len(shape) > 0
    where = rng.random((shape[0],) + (1,) * (len(shape) - 1) if by_row else shape)
    return np.where(where < present, flat, np.zeros((), dtype))


@st.composite
def sparse_arrays(draw, dtypes=DTYPES):
    """Return a SparseArray whose values may be zero, at times in whole rows."""
    dense = draw(arrays(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0, 0.02, 0.1, 0.5, 0.95, 1]))
    if draw(st.booleans()) and dense.ndim:
        rows = np.flatnonzero(rng.random(len(dense)) < share)
        return SparseArray.of_channels(dense, rows)
    return SparseArray.of_mask(dense, np.asarray(rng.random(dense.shape) < share))


def sparse(shape, indices, values, dtype="float32"):
    return SparseArray(shape, np.array(indices, np.int64), np.array(values, dtype))


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if isinstance(expected, SparseArray):
        assert actual.indices.dtype == np.int64
        assert actual.indices.tolist() == expected.indices.tolist()
        actual, expected = actual.values, expected.values
    assert actual.tobytes() == expected.tobytes()


@steady
@given(arrays() | sparse_arrays())
def test_a_tensor_comes_back_bit_for_bit(tensor):
    assert_same(decode(encode(tensor)), tensor)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "float32"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_leaves_every_dtype_but_float32_alone(dtype, precision):
    tensor = np.array([0, 1, 1 / 3, 100.7]).astype(dtype)
    encoded = encode(tensor, precision)
    assert "+" not in encoded.form
    assert_same(decode(encoded), tensor)


def test_memory_order_strides_and_byte_order_do_not_matter():
    tensor = np.arange(24, dtype=np.float32).reshape(4, 6) + 0.1
    for precision in PRECISIONS:
        expected = decode(encode(tensor, precision))
        wide = np.repeat(tensor, 2, axis=1)[:, ::2]
        for other in (np.asfortranarray(tensor), wide, tensor.astype(">f4")):
            assert_same(decode(encode(other, precision)), expected)


def test_values_travel_little_endian():
    assert encode(np.array([1], ">i4")).data == b"\x01\x00\x00\x00"
    assert encode(np.array([1.0], ">f4"), "bfloat16").data == b"\x80\x3f"


# What the bytes are, by hand.


def test_bitmap_holds_values_then_one_bit_an_entry():
    encoded = encode(sparse((10,), [0, 9], [7, 0], "uint8"))
    expected = Encoded("uint8", (10,), "fcl.sparse.bitmap", b"\x07\x00\x01\x02")
    assert encoded == expected


def test_a_dense_array_leaves_zeros_out_where_that_is_smaller():
    few = np.zeros(32, np.uint16)
    few[[3, 9]] = 7, 8
    expected = b"\x07\x00\x08\x00" + b"\x08\x02\x00\x00"
    assert encode(few) == Encoded("uint16", (32,), "fcl.dense.bitmap", expected)
    for zeros, form in ((2, "fcl.dense"), (3, "fcl.dense.bitmap")):
        values = np.frombuffer(RNG.bytes(64), np.uint16) | np.uint16(1)
        values[:zeros] = 0  # two values have the bytes of 32 bits
        assert encode(values).form == form


def test_a_large_array_of_zeros_takes_few_bytes():
    tensor = np.zeros((1000, 1000), np.float32)
    encoded = encode(tensor)
    assert encoded.form == "fcl.dense.bitmap+zstd"
    assert len(encoded.data) < 100
    assert_same(decode(encoded), tensor)


def test_whole_rows_take_hardly_more_than_their_values():
    dense = np.random.default_rng(3).normal(size=(100, 500)).astype(np.float32)
    rows = SparseArray.of_channels(dense, np.arange(0, 100, 2))
    assert len(encode(rows).data) < 1.01 * len(encode(dense[::2]).data)


# Values that are multiples of a step.


@st.composite
def multiples(draw):
    """Draw multiples of a step with the first and the last one, dense or sparse."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    most = draw(st.sampled_from([1, 3, 15, 127]))
    step = np.float32(10.0 ** draw(st.integers(-30, 30)) * rng.uniform(1, 10))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=9, max_side=12))
    levels = rng.integers(-most, most + 1, shape)
    levels.reshape(-1)[:2] = most, -1
    dense = (levels.astype(np.float32) * step).astype(np.float32)
    return SparseArray.of_nonzero(dense) if draw(st.booleans()) else dense


@steady
@given(multiples(), st.sampled_from(PRECISIONS))
def test_multiples_of_a_step_travel_as_levels_bit_for_bit(tensor, precision):
    encoded = encode(tensor, precision)
    assert "+levels" in encoded.form
    assert_same(decode(encoded), tensor)


@pytest.mark.parametrize("bits", range(2, 9))
def test_an_adapter_that_a_client_has_rounded_is_at_levels(bits):
    drawn = np.random.default_rng(bits).normal(size=(400, 100)).astype(np.float32)
    adapter = rounded(SparseArray.of_nonzero(drawn), bits)
    encoded = encode(adapter)
    assert encoded.form == "fcl.sparse.bitmap+levels+zstd"
    assert len(encoded.data) < 1.03 * adapter.nnz * bits / 8 + 5000
    assert_same(decode(encoded), adapter)


def test_what_is_no_multiple_has_no_step():
    values = (np.arange(-127, 128) * np.float32(0.3)).astype(np.float32)
    step, levels = exact_levels(values, 127)
    assert step == np.float32(0.3)
    assert levels.tolist() == [*range(-127, 128)]
    assert exact_levels(values, 7) is None
    for other in (np.float32(-0.0), np.float32(0.31), np.nan, np.inf):
        assert exact_levels(np.append(values, other).astype(np.float32), 127) is None
    assert exact_levels(np.zeros(100, np.float32), 127) is None


def test_every_form_is_chosen_by_some_tensor():
    rng = np.random.default_rng(3)
    seen = set()
    for side in (3, 8, 40):  # few bytes are no smaller in a frame
        dense = rng.normal(size=(side, side)).astype(np.float32)
        present = rng.random(dense.shape) < 0.4
        at_levels = rng.integers(-7, 8, dense.shape).astype(np.float32)
        zeros = at_levels * present
        some = (dense, np.where(present, dense, np.float32(0)))
        for tensor in (*some, SparseArray.of_mask(dense, present)):
            seen |= {encode(tensor, precision).form for precision in PRECISIONS}
        for tensor in (at_levels + 8, zeros, SparseArray.of_nonzero(zeros)):
            seen.add(encode(tensor, "int8").form)
    assert seen == set(FORMS)


# Lower precision on the wire, against torch.

EDGES = [
    *(0.0, -0.0, 1.0, 1 / 3, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 1e-38, 2**-133),
    *(65504.0, 65519.996, 65520.0, -65520.0, 1e5, 6e-8, 2.98e-8, 2.9802322e-8, 5.9e-8),
]


def float32_samples():
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000  # halfway between two bfloat16 numbers
    halves = rng.normal(size=10_000).astype(np.float16).view(np.uint16)
    upper = (halves + 1).astype(np.uint16).view(np.float16).astype(np.float32)
    between = (halves.view(np.float16).astype(np.float32) + upper) / 2
    return np.concatenate(
        [bits.view("f4"), ties.view("f4"), between, np.array(EDGES, "f4")]
    )


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_lower_precision_rounds_as_torch_does(precision, kind):
    values = float32_samples()
    torch_type = getattr(torch, precision)
    expected = torch.from_numpy(values).to(torch_type).to(torch.float32).numpy()
    tensor = sparse(values.shape, range(len(values)), values)
    actual = decode(encode(values if kind == "dense" else tensor, precision))
    actual = actual if kind == "dense" else actual.values
    assert actual.dtype == np.float32
    number = ~np.isnan(values)
    assert not number.all()
    assert np.isnan(actual[~number]).all()
    assert actual[number].tobytes() == expected[number].tobytes()


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_no_payload_turns_a_nan_into_a_number(bits, precision):
    tensor = np.array([bits, bits], np.uint32).view(np.float32)
    assert np.isnan(decode(encode(tensor, precision))).all()


def test_a_signalling_nan_from_a_peer_decodes_without_a_warning():
    tensor = decode(Encoded("float32", (2,), "fcl.dense+float16", b"\x01\x7c\x00\x3c"))
    assert np.isnan(tensor).tolist() == [True, False]


@steady
@given(
    arrays(["float32"]) | sparse_arrays(["float32"]),
    st.sampled_from(["float16", "bfloat16"]),
)
def test_lower_precision_loses_nothing_more_the_second_time(tensor, precision):
    first = encode(tensor, precision)
    assert_same(decode(encode(decode(first), precision)), decode(first))
    if isinstance(tensor, SparseArray):
        assert decode(first).indices.tolist() == tensor.indices.tolist()


def test_a_caller_who_makes_numpy_raise_still_gets_infinity():
    with np.errstate(all="raise"):
        tensor = decode(encode(np.array([1e9, 1e-9], np.float32), "float16"))
    assert tensor.tolist() == [np.inf, 0.0]


# What cannot travel.


@pytest.mark.parametrize(
    "tensor",
    [
        np.array([None]),
        np.array(["a"]),
        np.array([1j]),
        np.array(["2020"], "datetime64[Y]"),
        np.zeros(2, [("a", "f4")]),
        sparse((3,), [0], [1j], "complex64"),
    ],
)
def test_encode_refuses_a_dtype_that_cannot_travel(tensor):
    with pytest.raises(ContractError, match=r"dtype .* cannot travel"):
        encode(tensor)


@pytest.mark.parametrize("indices", [[2, 1], [1, 1], [-1, 1], [0, 3]])
def test_encode_refuses_a_sparse_array_that_contradicts_itself(indices):
    with pytest.raises(WireError, match="indices"):
        encode(sparse((3,), indices, [1, 2]))


# Hostile bytes.


def assert_tensor_or_wire_error(encoded, max_bytes=2**16):
    """Return whether ``encoded`` was accepted; what was accepted must be sound."""
    try:
        tensor = decode(encoded, max_bytes)
    except WireError:
        return False
    assert tensor.shape == encoded.shape
    assert tensor.dtype.name == encoded.dtype
    if isinstance(tensor, SparseArray):
        tensor.validate()
        tensor = tensor.to_dense()
    assert tensor.nbytes <= max_bytes
    if encoded.dtype == "bool":
        assert tensor.view(np.uint8).max(initial=0) <= 1
    return True


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (Encoded("float32", (1,), "fcl.tensor", bytes(4)), "unknown form 'fcl.tensor'"),
        (Encoded("float32", (1,), "fcl.dense+int2", bytes(4)), "unknown form"),
        (Encoded("float32", (1,), "fcl.sparse", bytes(4)), "unknown form"),
        (Encoded("object", (1,), "fcl.dense", bytes(8)), "unknown dtype 'object'"),
        (Encoded("O", (1,), "fcl.dense", bytes(8)), "unknown dtype"),
        (Encoded("<f4", (1,), "fcl.dense", bytes(4)), "unknown dtype"),
        (Encoded("int16", (1,), "fcl.dense+float16", bytes(2)), "holds float32"),
        (Encoded("int8", (-1, -1), "fcl.dense", bytes(1)), "negative"),
        (Encoded("int8", (1,) * 65, "fcl.dense", bytes(1)), "65 axes"),
        (Encoded("int8", (2**70,), "fcl.dense", bytes(1)), "claims more"),
        (Encoded("int8", (0, 2**62), "fcl.dense", b""), "claims more"),
        (Encoded("int8", (2**32,) * 2, "fcl.dense.bitmap", b"\1"), "claims more"),
        (Encoded("int8", (3,), "fcl.dense", bytes(2)), "holds 3 values, not 2"),
        (Encoded("int8", (3,), "fcl.dense", bytes(4)), "holds 3 values, not 4"),
        (Encoded("int16", (3,), "fcl.dense", bytes(5)), "values of 2 bytes"),
        (Encoded("int8", (9,), "fcl.dense.bitmap", bytes(1)), "2 bytes beside"),
        (Encoded("int8", (8,), "fcl.dense.bitmap", b"\5\3"), "marks 2 values, not 1"),
        (Encoded("int8", (3,), "fcl.sparse.bitmap", b"\5\x08"), "must lie in"),
        (Encoded("bool", (2,), "fcl.dense", b"\1\2"), "byte 0 or 1"),
        (Encoded("bool", (2,), "fcl.sparse.bitmap", b"\2\1"), "byte 0 or 1"),
    ],
)
def test_decode_names_what_is_wrong(encoded, message):
    with pytest.raises(WireError, match=message):
        decode(encoded)


def samples():
    """Return encoded tensors of each form and several dtypes."""
    rng = np.random.default_rng(3)
    for dtype in ("float32", "bool", "uint8", "float64"):
        dense = (rng.normal(size=(6, 12)) * 50).astype(dtype)
        for share in (0.05, 0.5):
            tensor = SparseArray.of_mask(dense, rng.random(dense.shape) < share)
            for precision in (*PRECISIONS, "int8"):
                yield encode(tensor, precision)
                yield encode(tensor.to_dense(), precision)
        yield encode(dense)
    levels = rng.integers(-7, 8, (20, 20)).astype(np.float32)
    yield from map(encode, (levels, levels + 9, SparseArray.of_nonzero(levels)))


def test_flipped_truncated_and_grown_data_never_crashes():
    rng = np.random.default_rng(11)
    refused = accepted = 0
    for encoded in samples():
        size = len(encoded.data)
        damaged = [encoded.data[:cut] for cut in range(size)]
        damaged += [encoded.data + rng.bytes(more) for more in range(1, 10)]
        for _ in range(100):
            data = bytearray(encoded.data)
            for bit in rng.integers(0, 8 * size, rng.integers(1, 4)):
                data[bit // 8] ^= 1 << (bit % 8)
            damaged.append(bytes(data))
        for data in damaged:
            other = Encoded(encoded.dtype, encoded.shape, encoded.form, data)
            if assert_tensor_or_wire_error(other):
                accepted += 1
            else:
                refused += 1
    assert refused > 3000
    assert accepted > 1000  # a flipped bit of a value is a valid other value


@settings(steady, max_examples=1000)
@given(
    st.builds(
        Encoded,
        dtype=st.sampled_from(DTYPES),
        shape=st.lists(st.integers(-1, 70) | st.integers(), max_size=3).map(tuple),
        form=st.sampled_from(FORMS),
        data=st.binary(max_size=40),
    )
)
def test_random_bytes_never_crash(encoded):
    assert_tensor_or_wire_error(encoded)


@pytest.mark.parametrize("field", ["form", "dtype"])
def test_an_error_quotes_only_the_start_of_what_the_peer_said(field):
    header = {"form": "fcl.dense", "dtype": "int8", field: "\x00" * 100_000}
    with pytest.raises(WireError) as caught:
        decode(Encoded(shape=(1,), data=b"\1", **header))
    assert len(str(caught.value)) < 300


def peak_of_decoding(encoded, max_bytes=2**31):
    tracemalloc.start()
    try:
        decode(encoded, max_bytes)
    except WireError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "shape", [(2**40,), (2**31, 2**31), (2**29 + 1,), (0, 2**60), (2**200,)]
)
def test_a_shape_that_claims_too_much_allocates_nothing(form, shape):
    encoded = Encoded("float32", shape, form, b"\x01")
    with pytest.raises(WireError, match="claims more"):
        decode(encoded)
    assert peak_of_decoding(encoded) < 20_000


def test_the_limit_counts_decoded_bytes_and_is_the_callers():
    zeros = encode(np.zeros(1000, np.float32), "float16")
    sparse_zeros = encode(sparse((1000,), [], []))
    for encoded in (zeros, sparse_zeros):
        assert decode(encoded, max_bytes=4000).shape == (1000,)
        with pytest.raises(WireError, match="claims more than 3999 bytes"):
            decode(encoded, max_bytes=3999)


def test_no_limit_lets_a_size_leave_int64():
    claim = Encoded("int8", (2**63,), "fcl.sparse.bitmap", b"\x01")
    with pytest.raises(WireError, match="claims more"):
        decode(claim, max_bytes=2**80)


@pytest.mark.parametrize(
    ("dtype", "shape", "form", "data"),
    [
        # All bits set and no value: counted before any index is made.
        ("uint8", (8_000_000,), "fcl.sparse.bitmap", b"\xff" * 1_000_000),
        # Honest, but with the smallest values there are.
        ("uint8", (800_000,), "fcl.sparse.bitmap", b"\xff" * 900_000),
        ("uint8", (1_000_000,), "fcl.dense", b"\x00" * 1_000_000),
        ("float32", (500_000,), "fcl.dense+bfloat16", b"\x00" * 1_000_000),
        # Most of the dense tensor is not there, but nobody asked for it.
        ("float64", (8_000_000,), "fcl.sparse.bitmap", bytes(1_000_000)),
    ],
)
def test_memory_stays_within_a_small_multiple_of_the_data(dtype, shape, form, data):
    assert peak_of_decoding(Encoded(dtype, shape, form, data)) < 20 * len(data)


@steady
@given(arrays() | sparse_arrays(), st.sampled_from(PRECISIONS))
def test_what_was_decoded_cannot_be_written_to(tensor, precision):
    decoded = decode(encode(tensor, precision))
    if isinstance(decoded, SparseArray):
        assert not decoded.indices.flags.writeable
        decoded = decoded.values
    assert not decoded.flags.writeable


def test_encoding_leaves_its_argument_writeable_and_unchanged():
    tensor = np.array([0, 1.0, 1 / 3], np.float32)
    for precision in PRECISIONS:
        encode(tensor, precision)
    assert tensor.flags.writeable
    assert tensor.tolist() == [0, 1, np.float32(1 / 3)]


# ---- values at levels: bounds, means over seeds, and hostile steps

SCALED = list(LEVELS)
often = settings(derandomize=True, deadline=None, max_examples=200)
float_arrays = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    elements=st.floats(-1e6, 1e6, width=32),
)


def scale_of(tensor, precision):
    return np.abs(tensor).max(initial=0) / LEVELS[precision]


@often
@given(
    float_arrays,
    st.sampled_from(SCALED),
    st.one_of(st.none(), st.integers(0, 2**40)),
)
def test_a_value_moves_by_less_than_the_step(tensor, precision, seed):
    read = decode(encode(tensor, precision, seed=seed))
    assert (read.shape, read.dtype) == (tensor.shape, np.float32)
    scale = scale_of(tensor, precision)
    allowed = (0.5 if seed is None else 1) * scale * (1 + 1e-5) + 1e-40
    assert np.all(np.abs(read - tensor) <= allowed)


@often
@given(float_arrays, st.sampled_from(SCALED))
def test_the_nearest_level_is_never_further_than_zero(tensor, precision):
    read = decode(encode(tensor, precision))
    assert np.all(np.abs(read - tensor) <= np.abs(tensor) * (1 + 1e-5))


@pytest.mark.parametrize("precision", SCALED)
def test_levels_are_those_of_the_step_by_hand(precision):
    most = LEVELS[precision]
    tensor = np.array([[2.0 * most, 1.1, -1.1, -2.0 * most]], np.float32)
    made = encode(tensor, precision)
    levels = np.array([most, 1, -1, -most], "i1").tobytes()
    assert made.data == struct.pack("<f", 2.0) + levels
    assert decode(made).tolist() == [[2.0 * most, 2, -2, -2.0 * most]]


@pytest.mark.parametrize("precision", SCALED)
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
    with pytest.raises(WireError, match="step of levels must be finite"):
        decode(made)


def with_step(step, levels=b"\x01\x02"):
    data = struct.pack("<f", step) + levels
    return Encoded("float32", (len(levels),), "fcl.dense+levels", data)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (with_step(float("nan")), "finite, not nan"),
        (with_step(float("inf")), "finite, not inf"),
        (with_step(-1.0), "finite, not -1"),
        (with_step(1.0, b"\x80"), r"level must lie in \[-127, 127\]"),
        (Encoded("float32", (0,), "fcl.dense+levels", b"\0\0"), "4 bytes beside"),
        (Encoded("float32", (2,), "fcl.dense+levels", bytes(5)), "holds 2 values"),
        (Encoded("float64", (1,), "fcl.dense+levels", bytes(5)), "holds float32"),
        (Encoded("int8", (1,), "fcl.dense+levels", bytes(5)), "holds float32"),
    ],
    ids=range(8),
)
def test_a_hostile_step_or_level_is_refused(made, why):
    with pytest.raises(WireError, match=why):
        decode(made)


# ---- compressed tensors: what comes back, and frames that lie


def framed(data, width=1):
    """Compress bytes as values of some bytes each."""
    return compress(b"", np.frombuffer(data, f"V{width}"), b"")


def test_the_bytes_of_a_frame_are_sorted_by_their_place_in_a_value():
    values = np.frombuffer(b"\x01\x02\x03\x11\x12\x13", "V3")
    frame = compress(b"\xee", values, b"\xff")
    assert zstandard.decompress(frame) == b"\xee\x01\x11\x02\x12\x03\x13\xff"


def forged(claimed, window=None, content=b"x" * 64):
    """Return a frame of raw blocks whose header claims what it likes."""
    header = struct.pack("<I", 0xFD2FB528)
    if window is None:  # a single segment: the size is its window, too
        header += bytes([0b11100000]) + struct.pack("<Q", claimed)
    else:
        header += bytes([0b11000000, window << 3]) + struct.pack("<Q", claimed)
    block = len(content) << 3 | 1
    return header + struct.pack("<I", block)[:3] + content


def bomb(size):
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (bomb(2**28), "claims 268435456 bytes"),
        (forged(2**62), "claims"),
        (forged(65), "damaged"),
        (forged(63), "damaged"),
        (forged(64, window=30), "damaged"),
        (b"", "damaged"),
        (b"no frame", "damaged"),
        (framed(bytes(900))[:-2], "damaged"),
        (framed(bytes(900)) + b"\0", "damaged"),
        (framed(bytes(9)) * 2, "damaged"),
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(900)),
            "claims -1 bytes",
        ),
        (struct.pack("<II", 0x184D2A50, 4) + bytes(4) + bomb(2**28), "damaged"),
        (struct.pack("<II", 0x184D2A50, 2**31), "damaged"),
    ],
    ids=range(13),
)
def test_a_frame_that_lies_is_refused_and_takes_no_memory(frame, why):
    def refused():
        with pytest.raises(WireError, match=why):
            decompress(frame, 1000)

    assert peak_of(refused) < 0.2


# ---- frames around tensors


@pytest.mark.parametrize("form", ["", ".bitmap"])
@pytest.mark.parametrize("suffix", ["", "+float16", "+levels"])
def test_a_bomb_in_a_tensor_is_refused_before_it_is_opened(form, suffix):
    claim = Encoded("float32", (40, 50), f"fcl.dense{form}{suffix}+zstd", bomb(2**28))
    assert spec(claim).shape == (40, 50)

    def refused():
        with pytest.raises(WireError, match="claims 268435456 bytes"):
            decode(claim)

    assert peak_of(refused) < 1


@pytest.mark.parametrize(
    ("form", "most"), [("", 40), (".bitmap", 42), ("+levels", 14), ("+float16", 20)]
)
def test_the_limit_is_what_shape_and_form_imply(form, most):
    for size, within in ((most, True), (most + 1, False)):
        made = Encoded("float32", (5, 2), f"fcl.dense{form}+zstd", framed(bytes(size)))
        try:
            decode(made)
            why = ""
        except WireError as error:
            why = str(error)
        assert (f"of {most} that it may" in why) is not within


@pytest.mark.parametrize("values", ["few", "noise"])
def test_a_tensor_is_compressed_only_where_that_is_smaller(values):
    if values == "few":
        encoded = encode(np.tile(np.array([0.1, 1.3, 7.7], np.float32), 4000))
        assert encoded.form == "fcl.dense+zstd"
        assert len(encoded.data) < 300
    else:
        tensor = np.frombuffer(RNG.bytes(16_000), np.uint8)
        encoded = encode(np.where(tensor == 0, 1, tensor).astype(np.uint8))
        assert (encoded.form, len(encoded.data)) == ("fcl.dense", 16_000)


def test_trained_weights_lose_a_seventh_of_their_bytes():
    weights = torch.nn.Linear(300, 200).weight.detach().numpy()
    assert len(encode(weights).data) < 0.87 * weights.nbytes
