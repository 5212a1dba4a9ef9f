"""Compressed tensors: what comes back, and frames that lie."""

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak_of

from fcl_flower.core.errors import WireError
from fcl_flower.federation.codec import (
    Encoded,
    compress_bytes,
    decode,
    decompress_bytes,
    encode,
    spec,
)

RNG = np.random.default_rng(3)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([1, 2, 4, 8]))
def test_bytes_come_back_whatever_is_left_over(data, itemsize):
    frame = compress_bytes(data, itemsize)
    assert decompress_bytes(frame, itemsize, len(data)) == data


def test_the_bytes_of_a_frame_are_sorted_by_their_place_in_a_value():
    frame = compress_bytes(b"\x01\x02\x03\x11\x12\x13\xff", 3)
    assert zstandard.decompress(frame) == b"\x01\x11\x02\x12\x03\x13\xff"


def test_a_limit_that_is_met_is_enough_and_one_byte_less_is_not():
    frame = compress_bytes(bytes(1000), 1)
    assert decompress_bytes(frame, 1, 1000) == bytes(1000)
    with pytest.raises(WireError, match="claims 1000 bytes, of 999 that it may"):
        decompress_bytes(frame, 1, 999)


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
        (compress_bytes(bytes(900), 1)[:-2], "damaged"),
        (compress_bytes(bytes(900), 1) + b"\0", "damaged"),
        (compress_bytes(bytes(9), 1) * 2, "damaged"),
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
            decompress_bytes(frame, 1, 1000)

    assert peak_of(refused) < 0.2


def test_damage_anywhere_is_refused_or_stays_within_the_limit():
    frame = bytearray(
        compress_bytes(RNG.integers(0, 5, 4000).astype("u1").tobytes(), 4)
    )
    refused = 0
    for place in range(len(frame)):
        for bit in range(8):
            frame[place] ^= 1 << bit
            try:
                assert len(decompress_bytes(bytes(frame), 4, 5000)) <= 5000
            except WireError:
                refused += 1
            frame[place] ^= 1 << bit
    assert refused > len(frame)


# ---- frames around tensors


@pytest.mark.parametrize("form", ["", ".bitmap", ".index", ".rows"])
@pytest.mark.parametrize("suffix", ["", "+float16", "+int8"])
def test_a_bomb_in_a_tensor_is_refused_before_it_is_opened(form, suffix):
    claim = Encoded("float32", (40, 50), f"fcl.dense{form}{suffix}+zstd", bomb(2**28))
    assert spec(claim).shape == (40, 50)

    def refused():
        with pytest.raises(WireError, match="claims 268435456 bytes"):
            decode(claim)

    assert peak_of(refused) < 1


@pytest.mark.parametrize(
    ("form", "most"),
    [("", 40), (".bitmap", 42), (".index", 40 + 80 + 1), (".rows", 41)],
)
def test_the_limit_is_what_shape_and_form_imply(form, most):
    for size, within in ((most, True), (most + 1, False)):
        made = Encoded(
            "float32", (5, 2), f"fcl.dense{form}+zstd", compress_bytes(bytes(size), 4)
        )
        try:
            decode(made)
            why = ""
        except WireError as error:
            why = str(error)
        assert (f"of {most} that it may" in why) is not within


@pytest.mark.parametrize("values", ["few", "noise"])
def test_a_tensor_is_compressed_only_where_that_is_smaller(values):
    tensor = np.ones(4000, np.float32)
    if values == "noise":
        tensor = RNG.bytes(16_000)
        tensor = np.frombuffer(tensor, np.uint8)
    plain, packed = encode(tensor), encode(tensor, compress=True)
    if values == "few":
        assert packed.form == "fcl.dense+zstd"
        assert len(packed.data) < 100
    else:
        assert packed == plain
    np.testing.assert_array_equal(decode(packed), tensor)
