"""One tensor as bytes and back: the smallest form wins, hostile bytes lose.

Every form is the stored values (little-endian, C order), then their positions. With
``n`` entries, ``k`` values of ``v`` bytes, and gaps of ``g`` bytes:

=========  ======================================================  =================
layout     positions                                               bytes in all
=========  ======================================================  =================
(none)     none: all entries are stored                            n v
bitmap     one bit an entry, lowest bit first                      k v + ceil(n / 8)
index      absent entries before each value, then one byte: g      k (v + g) + 1
rows       one bit a row of axis 0, of which all is stored         k v + ceil(rows/8)
=========  ======================================================  =================

``fcl.sparse.*`` decodes to a `SparseArray`. ``fcl.dense.*`` decodes to an array in
which an entry that is not stored is zero: the all-zero bit pattern, so that -0.0 and
NaN survive. A suffix such as ``+bfloat16`` names the precision of float32 values on
the wire.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Array, TensorSpec

WireDtype: TypeAlias = Literal["float32", "float16", "bfloat16"]
_Indices: TypeAlias = npt.NDArray[np.int64]

_SUFFIXES: dict[WireDtype, str] = {
    "float32": "",
    "float16": "+float16",
    "bfloat16": "+bfloat16",
}
_FORMS = {
    f"{kind}{layout}{suffix}": (kind, layout, precision)
    for kind in ("fcl.dense", "fcl.sparse")
    for layout in ("", ".bitmap", ".index", ".rows")
    for precision, suffix in _SUFFIXES.items()
    if (kind, layout) != ("fcl.sparse", "")
}
_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_UNSIGNED = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_MAX_AXES = 64  # NumPy's own limit


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor in its byte form.

    Attributes:
        dtype: of the decoded tensor, such as ``float32``.
        shape: of the decoded tensor.
        form: name of the byte form, such as ``fcl.sparse.rows+float16``.
        data: the stored values, then their positions.
    """

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: bytes


def encode(tensor: AnyArray, precision: WireDtype = "float32") -> Encoded:
    """Return ``tensor`` in the smallest of the forms that can hold it.

    Args:
        tensor: of bool, integer or float dtype. Zeros of a dense array may be left
            out; all entries of a `SparseArray` stay, explicit zeros too.
        precision: of float32 values on the wire, rounded to nearest even; values
            beyond the range of float16 become infinite. Other dtypes travel as they
            are. Encoding the decoded tensor again loses nothing more.

    Raises:
        ContractError: the dtype cannot travel, or the indices of a `SparseArray`
            are not strictly increasing entries of its shape.
    """
    dtype = tensor.dtype.name
    if dtype not in _DTYPES:
        raise ContractError(
            f"a tensor of dtype {dtype} cannot travel, only {', '.join(_DTYPES)}"
        )
    if isinstance(tensor, SparseArray):
        kind, (layout, data) = "fcl.sparse", _pack_sparse(tensor, precision)
    else:
        kind, (layout, data) = "fcl.dense", _pack_dense(tensor, precision)
    suffix = _SUFFIXES[precision] if dtype == "float32" else ""
    return Encoded(dtype, tensor.shape, f"{kind}{layout}{suffix}", data)


def spec(encoded: Encoded, max_bytes: int = 2**31) -> TensorSpec:
    """Return what the tensor is to be; nothing is decoded or allocated.

    Args:
        encoded: from a peer.
        max_bytes: limit of its dense size; of a `SparseArray` too, for `to_dense`.

    Raises:
        WireError: form, dtype or shape are not what `encode` can have made.
    """
    if encoded.form not in _FORMS:
        raise WireError(f"unknown form {encoded.form[:40]!r}")
    if encoded.dtype not in _DTYPES:
        raise WireError(f"unknown dtype {encoded.dtype[:40]!r}")
    (kind, _, precision), dtype = _FORMS[encoded.form], _DTYPES[encoded.dtype]
    if precision != "float32" and dtype != np.float32:
        raise WireError(f"form {encoded.form} holds float32, not {dtype}")
    _check_shape(encoded.shape, dtype.itemsize, max_bytes)
    return TensorSpec(encoded.shape, dtype, kind == "fcl.sparse")


def decode(encoded: Encoded, max_bytes: int = 2**31) -> AnyArray:
    """Return the tensor, read-only; trusts nothing that ``encoded`` says.

    Memory stays within a small multiple of the bytes received, except for a dense
    tensor whose zeros were left out (``max_bytes``): check its `spec`, whose arguments
    are the same, first.

    Raises:
        WireError: form, dtype, shape or data are not what `encode` can have made.
    """
    dtype = spec(encoded, max_bytes).dtype
    kind, layout, precision = _FORMS[encoded.form]
    wire = _wire_dtype(dtype, precision)
    if not layout:
        stored = _split(encoded.data, 0, wire)[0]
        if len(stored) != math.prod(encoded.shape):
            raise WireError(f"{len(stored)} values cannot fill shape {encoded.shape}")
        return _read_only(_from_wire(stored, dtype, precision).reshape(encoded.shape))
    if layout == ".index":
        stored, indices = _unpack_gaps(encoded.data, wire)
    else:
        grid = _grid(encoded.shape) if layout == ".rows" else _entries(encoded.shape)
        stored, indices = _unpack_bits(encoded.data, grid, wire)
    values = _from_wire(stored, dtype, precision)
    sparse = SparseArray(encoded.shape, _read_only(indices), _read_only(values))
    sparse.validate()
    return sparse if kind == "fcl.sparse" else _read_only(sparse.to_dense())


def _pack_sparse(tensor: SparseArray, precision: WireDtype) -> tuple[str, bytes]:
    """Return the smallest layout of the present entries, and its bytes."""
    try:
        tensor.validate()
    except WireError as error:
        raise ContractError(f"a sparse tensor cannot travel: {error}") from error
    sizes = _sizes_of_positions(tensor.shape, tensor.indices)
    rows = _whole_rows(tensor)
    if rows is None:
        del sizes[".rows"]
    layout = min(sizes, key=sizes.__getitem__)
    where = rows if rows is not None and layout == ".rows" else tensor.indices
    values = _to_wire(tensor.values, precision)
    return layout, values.tobytes() + _pack_positions(layout, tensor.shape, where)


def _pack_dense(tensor: Array, precision: WireDtype) -> tuple[str, bytes]:
    """Return the smallest layout of the entries that are not zero, and its bytes."""
    flat = _to_wire(tensor.reshape(-1), precision)
    present = flat.view(_UNSIGNED[flat.itemsize]) != 0
    if present.all():  # saves the search: the others only add positions
        return "", flat.tobytes()
    height, width = _grid(tensor.shape)
    rows = np.flatnonzero(present.reshape(height, width).any(axis=1))
    indices = np.flatnonzero(present)
    positions = {"": 0} | _sizes_of_positions(tensor.shape, indices)
    stored_in = {
        "": flat.size,
        ".bitmap": len(indices),
        ".index": len(indices),
        ".rows": len(rows) * width,
    }
    layout = min(
        stored_in, key=lambda name: stored_in[name] * flat.itemsize + positions[name]
    )
    if not layout:
        return layout, flat.tobytes()
    if layout == ".rows":
        stored, where = flat.reshape(height, width)[rows], rows
    else:
        stored, where = flat[indices], indices
    return layout, stored.tobytes() + _pack_positions(layout, tensor.shape, where)


def _grid(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows along axis 0 and entries a row; a 0-d tensor is one row."""
    return (shape[0] if shape else 1), math.prod(shape[1:])


def _entries(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the grid of which each row is one entry of the tensor."""
    return math.prod(shape), 1


def _whole_rows(tensor: SparseArray) -> _Indices | None:
    """Return the rows of axis 0 that are present, None if any is so in part."""
    width = _grid(tensor.shape)[1]
    if not width or tensor.nnz % width:
        return None
    starts, ends = tensor.indices[::width], tensor.indices[width - 1 :: width]
    if np.any(starts % width) or np.any(ends - starts != width - 1):
        return None
    return starts // width


def _gaps(indices: _Indices) -> Array:
    """Return how many absent entries precede each index, as the wire holds them."""
    gaps = np.diff(indices, prepend=-1) - 1
    itemsize = np.min_scalar_type(gaps.max(initial=0)).itemsize
    return gaps.astype(_UNSIGNED[itemsize])


def _sizes_of_positions(shape: tuple[int, ...], indices: _Indices) -> dict[str, int]:
    """Return by layout how many bytes the positions take, without making them."""
    return {
        ".bitmap": (math.prod(shape) + 7) // 8,
        ".index": _gaps(indices).nbytes + 1,
        ".rows": (_grid(shape)[0] + 7) // 8,
    }


def _pack_positions(layout: str, shape: tuple[int, ...], where: _Indices) -> bytes:
    """Return the bytes that say where the stored values stand.

    Args:
        layout: its name, with the dot.
        shape: of the tensor.
        where: rows of axis 0 for the layout of rows, else flat indices.
    """
    if layout == ".index":
        gaps = _gaps(where)
        return gaps.tobytes() + bytes([gaps.itemsize])
    height = (_grid(shape) if layout == ".rows" else _entries(shape))[0]
    marks = np.zeros(height, np.bool_)
    marks[where] = True
    return np.packbits(marks, bitorder="little").tobytes()


def _split(data: bytes, tail: int, wire: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the stored values and the last ``tail`` bytes, without a copy."""
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


def _unpack_bits(
    data: bytes, grid: tuple[int, int], wire: np.dtype[Any]
) -> tuple[Array, _Indices]:
    """Return the stored values and their flat indices, one bit a row of ``grid``."""
    height, width = grid
    if not width:
        raise WireError("rows without entries cannot be stored")
    stored, packed = _split(data, (height + 7) // 8, wire)
    marks = np.unpackbits(packed, bitorder="little").view(np.bool_)
    # Counted before the indices are made, which take 64 times the bytes of the bits.
    count = np.count_nonzero(marks) * width
    if count != len(stored):
        raise WireError(f"the bitmap marks {count} values, not {len(stored)}")
    starts = np.flatnonzero(marks) * width
    return stored, np.add.outer(starts, np.arange(width)).reshape(-1)


def _unpack_gaps(data: bytes, wire: np.dtype[Any]) -> tuple[Array, _Indices]:
    """Return the stored values and their flat indices, which may be out of range."""
    gap = _UNSIGNED.get(data[-1]) if data else None
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


def _check_shape(shape: tuple[int, ...], itemsize: int, max_bytes: int) -> None:
    """Refuse a shape that NumPy cannot hold or that claims too much memory."""
    if len(shape) > _MAX_AXES:
        raise WireError(f"a tensor of {len(shape)} axes; at most {_MAX_AXES} allowed")
    if any(length < 0 for length in shape):
        raise WireError("the shape holds a negative length")
    # NumPy refuses (0, 2**62), too: an empty axis does not excuse the others.
    claimed = math.prod(max(length, 1) for length in shape) * itemsize
    limit = min(max_bytes, 2**63 - 1)  # flat indices are int64
    if claimed > limit:
        raise WireError(f"the shape claims more than {limit} bytes")


def _wire_dtype(dtype: np.dtype[Any], precision: WireDtype) -> np.dtype[Any]:
    """Return the little-endian dtype in which values of ``dtype`` travel."""
    if dtype != np.float32 or precision == "float32":
        return dtype.newbyteorder("<")
    return np.dtype("<f2" if precision == "float16" else "<u2")


def _to_wire(values: Array, precision: WireDtype) -> Array:
    """Return ``values``, shape (k,), as they travel; bfloat16 as its bits."""
    dtype = _DTYPES[values.dtype.name]
    native = values.astype(dtype, copy=False)
    if dtype != np.float32 or precision != "bfloat16":
        with np.errstate(all="ignore"):  # beyond the range of float16 lies infinity
            return native.astype(_wire_dtype(dtype, precision), copy=False)
    bits = native.view(np.uint32)
    high = bits >> 16
    nearest = (bits + (high & 1) + 0x7FFF) >> 16  # a tie goes to the even neighbour
    # Rounding can carry a NaN over to infinity or zero: set its quiet bit instead.
    return np.where(np.isnan(native), high | 0x40, nearest).astype("<u2")


def _from_wire(stored: Array, dtype: np.dtype[Any], precision: WireDtype) -> Array:
    """Return the values of ``dtype`` that `_to_wire` turned into ``stored``."""
    if dtype == np.bool_ and np.any(stored.view(np.uint8) > 1):
        raise WireError("a value of dtype bool must be the byte 0 or 1")
    if dtype == np.float32 and precision == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some processors flag a NaN
        return stored.astype(dtype, copy=False)


def _read_only(array: Array) -> Array:
    """Return ``array`` itself, made read-only."""
    array.flags.writeable = False
    return array
