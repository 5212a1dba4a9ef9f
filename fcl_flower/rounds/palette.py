"""Float32 values of which few differ, as a palette and a code of some bits for each.

An adapter that a client has rounded has some thirty different values: each travels,
and lies on disk, as a code of five bits. Nothing is lost. Values that differ more than
a palette holds, or are too few to be worth one, are left to the other forms.

The bytes: the count of colours less one in one byte, the colours as little-endian
float32, and for each value the place of its colour, lowest bit first.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import WireError

COLOURS: Final = 256
"""The most of a palette: a code takes at most a byte."""
LEAST: Final = 256
"""The fewest values that get one: fewer bytes are not worth the search."""
HEAD: Final = 1 + 4 * COLOURS
"""The most bytes of a palette without codes."""
_SAMPLES: Final = (512, 4096)
"""How many values are looked at first: those of most tensors show at once that they
differ."""

Bytes = bytes | memoryview
Values = npt.NDArray[Any]
Codes = npt.NDArray[np.uint8]


def colours_of(values: Values) -> tuple[Values, Codes] | None:
    """Find the different values, bit by bit, and the place of each value among them.

    Args:
        values: float32, shape (n,).

    Returns:
        At most `COLOURS` values and codes of shape (n,); None where more differ, or n
        is below `LEAST`.
    """
    bits = values.view(np.uint32)
    if len(bits) < LEAST:
        return None
    for count in _SAMPLES:
        found = _different(bits[:: max(1, len(bits) // count)])
        if len(found) > COLOURS:
            return None
    codes = np.minimum(np.searchsorted(found, bits), len(found) - 1)
    if not np.array_equal(found[codes], bits):  # the sample lacks some
        found = _different(bits)
        if len(found) > COLOURS:
            return None
        codes = np.searchsorted(found, bits)
    return found.view(np.float32), codes.astype(np.uint8)


def _different(bits: Values) -> Values:
    # `np.unique` hashes: of values that all differ it takes twenty times as long.
    ordered = np.sort(bits)
    found: Values = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return found


def code_bits(colours: int) -> int:
    """Count the bits of a code, 1 to 8.

    >>> [code_bits(n) for n in (1, 2, 3, 32, 33, 256)]
    [1, 1, 2, 5, 6, 8]
    """
    return max(1, (colours - 1).bit_length())


def pack(colours: Values, codes: Codes, bits: int) -> bytes:
    """Pack a palette and codes of ``bits`` bits each."""
    head = bytes([len(colours) - 1]) + colours.astype("<f4").tobytes()
    if bits == 8:
        return head + codes.tobytes()
    places = np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little")
    return head + np.packbits(places, bitorder="little").tobytes()


def unpack(data: Bytes, count: int, bits: int) -> Values:
    """Undo `pack` for ``count`` values; trust nothing that ``data`` says.

    Raises:
        WireError: the bytes are too few or too many, or a code is beyond the palette.
    """
    colours = data[0] + 1 if len(data) else 0
    start = 1 + 4 * colours
    if len(data) != start + (count * bits + 7) // 8:
        raise WireError(
            f"{len(data)} bytes are no palette and {count} codes of {bits} bits"
        )
    palette = np.frombuffer(data, "<f4", colours, 1)
    codes = np.frombuffer(data, np.uint8, offset=start)
    if bits < 8:
        codes = _split_codes(codes, count, bits)
    if count and int(codes.max()) >= colours:
        raise WireError(f"a code lies beyond a palette of {colours} colours")
    return palette[codes].astype(np.float32, copy=False)


def _split_codes(packed: Codes, count: int, bits: int) -> Codes:
    # Eight codes are so many bytes: one number, which each of them is shifted out of.
    groups = -(-count // 8)
    padded = np.zeros(groups * bits, np.uint8)
    padded[: len(packed)] = packed
    numbers = np.zeros((groups, 8), np.uint8)
    numbers[:, :bits] = padded.reshape(groups, bits)
    shifts = np.arange(0, 8 * bits, bits, dtype="<u8")
    shifted = (numbers.view("<u8") >> shifts).astype(np.uint8)
    codes: Codes = (shifted & (2**bits - 1)).reshape(-1)[:count]
    return codes
