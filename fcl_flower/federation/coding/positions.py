"""Where the stored values of a tensor stand: marks of entries or rows, or gaps."""

import math
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Array

Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = bytes | memoryview
UNSIGNED: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}


def grid(layout: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many rows a layout marks, and how many entries each has.

    Args:
        layout: its name, with the dot. By ``.rows`` along axis 0, of which a 0-d tensor
            has one; else each entry is a row.
        shape: of the tensor.
    """
    if layout == ".rows":
        return (shape[0] if shape else 1), math.prod(shape[1:])
    return math.prod(shape), 1


def whole_rows(tensor: SparseArray) -> Indices | None:
    """Return the rows of axis 0 that are present, None if any is so in part."""
    width = grid(".rows", tensor.shape)[1]
    if not width or tensor.nnz % width:
        return None
    starts, ends = tensor.indices[::width], tensor.indices[width - 1 :: width]
    if np.any(starts % width) or np.any(ends - starts != width - 1):
        return None
    return starts // width


def _gaps(indices: Indices) -> Array:
    """Return how many absent entries precede each index, as the wire holds them."""
    gaps = np.diff(indices, prepend=-1) - 1
    itemsize = np.min_scalar_type(gaps.max(initial=0)).itemsize
    return gaps.astype(UNSIGNED[itemsize])


def sizes(shape: tuple[int, ...], indices: Indices) -> dict[str, int]:
    """Return by layout how many bytes the positions take, without making them."""
    return {
        ".bitmap": (math.prod(shape) + 7) // 8,
        ".index": _gaps(indices).nbytes + 1,
        ".rows": (grid(".rows", shape)[0] + 7) // 8,
    }


def pack(layout: str, shape: tuple[int, ...], where: Indices) -> bytes:
    """Return the bytes that say where the stored values stand.

    Args:
        layout: its name, with the dot.
        shape: of the tensor.
        where: rows of axis 0 for the layout of rows, else flat indices.
    """
    if layout == ".index":
        gaps = _gaps(where)
        return gaps.tobytes() + bytes([gaps.itemsize])
    marks = np.zeros(grid(layout, shape)[0], np.bool_)
    marks[where] = True
    return np.packbits(marks, bitorder="little").tobytes()


def split(data: Bytes, tail: int, wire: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the stored values and the last ``tail`` bytes, without a copy.

    Raises:
        WireError: there are fewer bytes, or the values are not whole.
    """
    body = len(data) - tail
    if body < 0 or body % wire.itemsize:
        raise WireError(
            f"{len(data)} bytes are not {tail} bytes of positions and whole values"
            f" of {wire.itemsize} bytes"
        )
    return (
        np.frombuffer(data, wire, body // wire.itemsize),
        np.frombuffer(data, np.uint8, tail, body),
    )


def unpack_bits(
    data: Bytes, rows: tuple[int, int], wire: np.dtype[Any]
) -> tuple[Array, Indices]:
    """Return the stored values and their flat indices, one bit a row of a `grid`.

    Args:
        data: from a peer.
        rows: of `grid`.
        wire: dtype of the values.

    Raises:
        WireError: values and marks do not fit each other.
    """
    height, width = rows
    if not width:
        raise WireError("rows without entries cannot be stored")
    stored, packed = split(data, (height + 7) // 8, wire)
    marks = np.unpackbits(packed, bitorder="little").view(np.bool_)
    # Counted before the indices are made, which take 64 times the bytes of the bits.
    count = np.count_nonzero(marks) * width
    if count != len(stored):
        raise WireError(f"the bitmap marks {count} values, not {len(stored)}")
    starts = np.flatnonzero(marks) * width
    return stored, np.add.outer(starts, np.arange(width)).reshape(-1)


def unpack_gaps(data: Bytes, wire: np.dtype[Any]) -> tuple[Array, Indices]:
    """Return the stored values and their flat indices, which may be out of range.

    Raises:
        WireError: values and gaps are not whole.
    """
    gap = UNSIGNED.get(data[-1]) if data else None
    if gap is None:
        raise WireError("the last byte of an index form must be 1, 2, 4 or 8")
    count, rest = divmod(len(data) - 1, wire.itemsize + gap.itemsize)
    if rest:
        raise WireError(
            f"{len(data)} bytes are not whole values of {wire.itemsize} bytes and"
            f" gaps of {gap.itemsize} bytes"
        )
    stored = np.frombuffer(data, wire, count)
    indices = np.frombuffer(data, gap, count, stored.nbytes).astype(np.int64)
    # A sum beyond int64 wraps to a smaller one, which `validate` then refuses.
    indices += 1
    np.cumsum(indices, out=indices)
    indices -= 1
    return stored, indices


def most_bytes(layout: str, shape: tuple[int, ...], itemsize: int) -> int:
    """Return how many bytes values and positions of a whole tensor can take.

    Args:
        layout: its name, with the dot; empty where nothing is left out.
        shape: of the tensor.
        itemsize: of a value.
    """
    if layout == ".index":
        return (itemsize + max(UNSIGNED)) * math.prod(shape) + 1
    marks = (grid(layout, shape)[0] + 7) // 8 if layout else 0
    return itemsize * math.prod(shape) + marks
