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
the wire; one with a scale, such as ``+int8``, has the scale before the values, a
little-endian float32. ``+zstd``, last, says that all of it is compressed.
"""

import math
from dataclasses import dataclass

import numpy as np

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Array, TensorSpec
from fcl_flower.federation.coding import positions
from fcl_flower.federation.coding.frames import compress as compressed
from fcl_flower.federation.coding.frames import decompress
from fcl_flower.federation.coding.precision import (
    WireDtype,
    from_wire,
    scale_bytes,
    to_wire,
    wire_dtype,
)

_SUFFIXES: dict[WireDtype, str] = {
    "float32": "",
    "float16": "+float16",
    "bfloat16": "+bfloat16",
    "int8": "+int8",
    "int4": "+int4",
    "ternary": "+ternary",
}
_FRAME = "+zstd"
_FORMS = {
    f"{kind}{layout}{suffix}{frame}": (kind, layout, precision, frame)
    for kind in ("fcl.dense", "fcl.sparse")
    for layout in ("", ".bitmap", ".index", ".rows")
    for precision, suffix in _SUFFIXES.items()
    for frame in ("", _FRAME)
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
_MAX_AXES = 64  # NumPy's own limit


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor in its byte form.

    Attributes:
        dtype: of the decoded tensor, such as ``float32``.
        shape: of the decoded tensor.
        form: name of the byte form, such as ``fcl.sparse.rows+float16``.
        data: the scale, if there is one, the stored values, then their positions.
    """

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: bytes | memoryview


def encode(
    tensor: AnyArray,
    precision: WireDtype = "float32",
    *,
    compress: bool = False,
    seed: int | None = None,
    copy: bool = True,
) -> Encoded:
    """Return ``tensor`` in the smallest of the forms that can hold it.

    Args:
        tensor: of bool, integer or float dtype. Zeros of a dense array may be left
            out; all entries of a `SparseArray` stay, explicit zeros too.
        precision: of float32 values on the wire, rounded to nearest even; values
            beyond the range of float16 become infinite. Other dtypes travel as they
            are. Encoding the decoded tensor again loses nothing more, but for a
            precision with a scale.
        compress: by Zstandard, where that is smaller.
        seed: of rounding at random, for a precision with a scale; None: to nearest.
        copy: False for bytes that are used before anybody changes the tensor: those of
            a whole array stay in its memory, read-only, if they travel as they are.

    Raises:
        ContractError: the dtype cannot travel, or the indices of a `SparseArray`
            are not strictly increasing entries of its shape.
    """
    dtype = tensor.dtype.name
    if dtype not in _DTYPES:
        raise ContractError(
            f"a tensor of dtype {dtype} cannot travel, only {', '.join(_DTYPES)}"
        )
    kind = "fcl.sparse" if isinstance(tensor, SparseArray) else "fcl.dense"
    values = tensor.values if isinstance(tensor, SparseArray) else tensor.reshape(-1)
    native = values.astype(_DTYPES[dtype], copy=False)
    stored, scale = to_wire(native, precision, seed)
    if isinstance(tensor, SparseArray):
        layout, places = _sparse_layout(tensor)
    else:
        layout, stored, places = _pack_dense(tensor.shape, stored)
    form = f"{kind}{layout}{_SUFFIXES[precision] if dtype == 'float32' else ''}"
    if not (copy or compress or scale or places):
        return Encoded(dtype, tensor.shape, form, _bytes_of(stored))
    data = scale + stored.tobytes() + places
    if compress and len(frame := compressed(data, stored.itemsize)) < len(data):
        data, form = frame, form + _FRAME
    return Encoded(dtype, tensor.shape, form, data)


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
    (kind, _, precision, _), dtype = _FORMS[encoded.form], _DTYPES[encoded.dtype]
    if precision != "float32" and dtype != np.float32:
        raise WireError(f"form {encoded.form} holds float32, not {dtype}")
    _check_shape(encoded.shape, dtype.itemsize, max_bytes)
    return TensorSpec(encoded.shape, dtype, kind == "fcl.sparse")


def decode(encoded: Encoded, max_bytes: int = 2**31) -> AnyArray:
    """Return the tensor, read-only; trusts nothing that ``encoded`` says.

    Memory stays within a small multiple of the bytes received, except for what a few
    bytes can claim, zeros that were left out and compressed values, and for these
    within a small multiple of the dense size (``max_bytes``): check the tensor's
    `spec`, whose arguments are the same, first.

    Raises:
        WireError: form, dtype, shape or data are not what `encode` can have made.
    """
    dtype = spec(encoded, max_bytes).dtype
    kind, layout, precision, frame = _FORMS[encoded.form]
    wire, head = wire_dtype(dtype, precision), scale_bytes(dtype, precision)
    data = encoded.data
    if frame:
        most = head + positions.most_bytes(layout, encoded.shape, wire.itemsize)
        data = decompress(bytes(data), wire.itemsize, most)
    if len(data) < head:
        raise WireError(f"{len(data)} bytes are too few for a scale")
    scale, data = bytes(data[:head]), data[head:] if head else data
    if not layout:
        stored = positions.split(data, 0, wire)[0]
        if len(stored) != math.prod(encoded.shape):
            raise WireError(f"{len(stored)} values cannot fill shape {encoded.shape}")
        values = from_wire(stored, dtype, precision, scale)
        return _read_only(values.reshape(encoded.shape))
    if layout == ".index":
        stored, indices = positions.unpack_gaps(data, wire)
    else:
        grid = positions.grid(layout, encoded.shape)
        stored, indices = positions.unpack_bits(data, grid, wire)
    values = from_wire(stored, dtype, precision, scale)
    sparse = SparseArray(encoded.shape, _read_only(indices), _read_only(values))
    sparse.validate()
    return sparse if kind == "fcl.sparse" else _read_only(sparse.to_dense())


def _sparse_layout(tensor: SparseArray) -> tuple[str, bytes]:
    """Return the smallest layout of the present entries, and their positions."""
    try:
        tensor.validate()
    except WireError as error:
        raise ContractError(f"a sparse tensor cannot travel: {error}") from error
    sizes = positions.sizes(tensor.shape, tensor.indices)
    rows = positions.whole_rows(tensor)
    if rows is None:
        del sizes[".rows"]
    layout = min(sizes, key=sizes.__getitem__)
    where = rows if rows is not None and layout == ".rows" else tensor.indices
    return layout, positions.pack(layout, tensor.shape, where)


def _pack_dense(shape: tuple[int, ...], flat: Array) -> tuple[str, Array, bytes]:
    """Return the smallest layout of the entries that are not zero, and what it holds.

    Args:
        shape: of the tensor.
        flat: its entries as they travel.
    """
    present = flat.view(positions.UNSIGNED[flat.itemsize]) != 0
    if present.all():  # saves the search: the others only add positions
        return "", flat, b""
    height, width = positions.grid(".rows", shape)
    rows = np.flatnonzero(present.reshape(height, width).any(axis=1))
    indices = np.flatnonzero(present)
    sizes = {"": 0} | positions.sizes(shape, indices)
    stored_in = {
        "": flat.size,
        ".bitmap": len(indices),
        ".index": len(indices),
        ".rows": len(rows) * width,
    }
    layout = min(
        stored_in, key=lambda name: stored_in[name] * flat.itemsize + sizes[name]
    )
    if not layout:
        return layout, flat, b""
    if layout == ".rows":
        stored, where = flat.reshape(height, width)[rows], rows
    else:
        stored, where = flat[indices], indices
    return layout, stored, positions.pack(layout, shape, where)


def _bytes_of(stored: Array) -> memoryview:
    """Return the bytes of an array, shape (k,), where they are; read-only."""
    return np.ascontiguousarray(stored).view(np.uint8).data.toreadonly()


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


def _read_only(array: Array) -> Array:
    """Return ``array`` itself, made read-only."""
    array.flags.writeable = False
    return array
