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

Float32 values of which few differ may have a `palette` instead, and codes of some bits
each (suffix ``+palette5`` for five), without loss: all of them, or with a bitmap.

``fcl.sparse.*`` decodes to a `SparseArray`. ``fcl.dense.*`` decodes to an array in
which an entry that is not stored is zero: the all-zero bit pattern, so that -0.0 and
NaN survive. A suffix such as ``+bfloat16`` names the precision of float32 values on
the wire; one with a scale, such as ``+int8``, has the scale before the values, a
little-endian float32. ``+zstd``, last, says that all of it is compressed.

With L levels on each side of zero (127, 7 or 1) and the scale s = max |x| / L a value x
becomes the integer q in [-L, L] next to x / s, and is read as s q: uniform quantisation
of a whole tensor. Rounded at random, up with the probability that the fraction is, s q
has the mean x (Alistarh et al., QSGD, NeurIPS 2017, section 3.1; Wen et al., TernGrad,
NeurIPS 2017, for L = 1). Rounded to the nearest it is never further from x than zero
is, which error feedback needs (Karimireddy et al., ICML 2019, assumption A).
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.types import (
    AnyArray,
    Array,
    SparseArray,
    TensorSpec,
    group_kind,
)
from fcl_flower.rounds import palette

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import ServerStrategy
    from fcl_flower.config.run_config import FederationSection

Indices: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = bytes | memoryview
UNSIGNED: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
WireDtype: TypeAlias = Literal[
    "float32", "float16", "bfloat16", "int8", "int4", "ternary"
]
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"int8": 127, "int4": 7, "ternary": 1}
)
"""How many there are on each side of zero, of the precisions that have a scale."""
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
_PALETTES = {
    f"{kind}{layout}+palette{bits}{frame}": (kind, layout, bits, frame)
    for kind, layout in (
        ("fcl.dense", ""),
        ("fcl.dense", ".bitmap"),
        ("fcl.sparse", ".bitmap"),
    )
    for bits in range(1, 9)
    for frame in ("", _FRAME)
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
CHUNK_BYTES: Final = 5 * 2**20
"""Of the pieces that Flower cuts a tensor into."""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How tensors of a run travel, by its settings and its algorithm.

    float16 and bfloat16 are for all float32 tensors. A precision with a scale is for
    those groups alone that the algorithm names, as all others are exact: sums, counts
    and statistics.

    Attributes:
        dtype: of float32 tensors.
        compress: by Zstandard, tensor by tensor, where that is smaller.
        feedback: what was rounded away is added to the next difference.
        differences: the kinds of groups that are a `model` (`algorithms.base.Group`).
        rounded: those that are `rounded`.
    """

    dtype: WireDtype = "float32"
    compress: bool = False
    feedback: bool = True
    differences: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        section: "FederationSection",
        strategy: "ServerStrategy[Any] | type[ServerStrategy[Any]]",
    ) -> Self:
        """Take the format of a run from its settings and its strategy."""
        return cls(
            section.wire_dtype,
            section.wire_compression == "zstd",
            section.error_feedback,
            strategy.kinds("model"),
            strategy.kinds("rounded"),
        )

    def precision(self, group: str) -> WireDtype:
        """Choose how float32 tensors of a group travel, if not as differences."""
        if self.dtype in LEVELS and group_kind(group) not in self.rounded:
            return "float32"
        return self.dtype

    def by_difference(self, group: str) -> bool:
        """Tell whether a group travels as the difference to what is known of it."""
        return self.dtype in LEVELS and group_kind(group) in self.differences


EXACT = WireFormat()


def is_matrix(tensor: AnyArray) -> bool:
    """Tell whether a tensor may be rounded to levels.

    Vectors may not: they are few bytes, and variances among them must not get negative,
    nor zero.
    """
    return tensor.dtype == np.float32 and len(tensor.shape) > 1


# ---- tensors


@dataclass(frozen=True)
class Encoded:
    """One tensor in its byte form, such as ``fcl.sparse.rows+float16``.

    ``dtype`` and ``shape`` are those of the decoded tensor. ``data`` is the scale, if
    there is one, the stored values, then their positions.
    """

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: Bytes

    @cached_property
    def chunk_hashes(self) -> list[bytes]:
        """Hashes of its pieces, made once: many clients may receive one tensor."""
        starts = range(0, len(self.data), CHUNK_BYTES)
        parts = (self.data[start : start + CHUNK_BYTES] for start in starts)
        return [hashlib.sha256(part).digest() for part in parts]


def encode(
    tensor: AnyArray,
    precision: WireDtype = "float32",
    *,
    compress: bool = False,
    seed: int | None = None,
    copy: bool = True,
) -> Encoded:
    """Encode a tensor in the smallest of the forms that can hold it.

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
    """
    dtype = tensor.dtype.name
    if dtype not in _DTYPES:
        raise ContractError(
            f"a tensor of dtype {dtype} cannot travel, only {', '.join(_DTYPES)}"
        )
    whole = _encode(tensor, dtype, precision, compress=compress, seed=seed, copy=copy)
    forms = [whole, *_with_palettes(tensor, compress=compress)]
    return min(forms, key=lambda form: len(form.data))


def _encode(
    tensor: AnyArray,
    dtype: str,
    precision: WireDtype,
    *,
    compress: bool,
    seed: int | None,
    copy: bool,
) -> Encoded:
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
        view = np.ascontiguousarray(stored).view(np.uint8).data.toreadonly()
        return Encoded(dtype, tensor.shape, form, view)
    data = scale + stored.tobytes() + places
    if compress and len(frame := compress_bytes(data, stored.itemsize)) < len(data):
        data, form = frame, form + _FRAME
    return Encoded(dtype, tensor.shape, form, data)


def _with_palettes(tensor: AnyArray, *, compress: bool) -> Iterator[Encoded]:
    """Encode float32 values with a palette; nothing where more differ than it holds."""
    if tensor.dtype != np.float32:
        return
    for form, values, where in _palette_layouts(tensor):
        found = palette.colours_of(np.ascontiguousarray(values, np.float32))
        if found is None:
            continue
        colours, codes = found
        places = b"" if where is None else pack(".bitmap", tensor.shape, where)
        bits = palette.code_bits(len(colours))
        data = palette.pack(colours, codes, bits) + places
        yield Encoded("float32", tensor.shape, f"{form}+palette{bits}", data)
        if compress:  # whole bytes: what it saves, codes of some bits would hide
            frame = compress_bytes(palette.pack(colours, codes, 8) + places, 1)
            yield Encoded("float32", tensor.shape, f"{form}+palette8{_FRAME}", frame)


def _palette_layouts(tensor: AnyArray) -> Iterator[tuple[str, Array, Indices | None]]:
    if isinstance(tensor, SparseArray):
        yield "fcl.sparse.bitmap", tensor.values, tensor.indices
        return
    flat = tensor.reshape(-1)
    yield "fcl.dense", flat, None
    present = flat.view(UNSIGNED[4]) != 0  # -0.0 is a colour of its own
    if not present.all():
        yield "fcl.dense.bitmap", flat[present], np.flatnonzero(present)


def spec(encoded: Encoded, max_bytes: int = 2**31) -> TensorSpec:
    """Read what the tensor is to be; nothing is decoded or allocated.

    ``max_bytes`` limits its dense size; of a `SparseArray` too, for `to_dense`.
    """
    found = _FORMS.get(encoded.form) or _PALETTES.get(encoded.form)
    if found is None:
        raise WireError(f"unknown form {encoded.form[:40]!r}")
    if encoded.dtype not in _DTYPES:
        raise WireError(f"unknown dtype {encoded.dtype[:40]!r}")
    (kind, _, precision, _), dtype = found, _DTYPES[encoded.dtype]
    if precision != "float32" and dtype != np.float32:
        raise WireError(f"form {encoded.form} holds float32, not {dtype}")
    _check_shape(encoded.shape, dtype.itemsize, max_bytes)
    return TensorSpec(encoded.shape, dtype, kind == "fcl.sparse")


def decode(encoded: Encoded, max_bytes: int = 2**31) -> AnyArray:
    """Decode a tensor, read-only; trust nothing that ``encoded`` says.

    Memory stays within a small multiple of the bytes received, except for what a few
    bytes can claim, zeros that were left out and compressed values, and for these
    within a small multiple of the dense size (``max_bytes``): check the tensor's
    `spec`, whose arguments are the same, first.
    """
    dtype = spec(encoded, max_bytes).dtype
    if encoded.form in _PALETTES:
        return _from_palette(encoded)
    kind, layout, precision, frame = _FORMS[encoded.form]
    wire, head = wire_dtype(dtype, precision), scale_bytes(dtype, precision)
    data = encoded.data
    if frame:
        most = head + most_bytes(layout, encoded.shape, wire.itemsize)
        data = decompress_bytes(bytes(data), wire.itemsize, most)
    if len(data) < head:
        raise WireError(f"{len(data)} bytes are too few for a scale")
    scale, data = bytes(data[:head]), data[head:] if head else data
    if not layout:
        stored = split(data, 0, wire)[0]
        if len(stored) != math.prod(encoded.shape):
            raise WireError(f"{len(stored)} values cannot fill shape {encoded.shape}")
        values = from_wire(stored, dtype, precision, scale)
        return _read_only(values.reshape(encoded.shape))
    if layout == ".index":
        stored, indices = unpack_gaps(data, wire)
    else:
        grid = position_grid(layout, encoded.shape)
        stored, indices = unpack_bits(data, grid, wire)
    values = from_wire(stored, dtype, precision, scale)
    sparse = SparseArray(encoded.shape, _read_only(indices), _read_only(values))
    sparse.validate()
    return sparse if kind == "fcl.sparse" else _read_only(sparse.to_dense())


def _from_palette(encoded: Encoded) -> AnyArray:
    kind, layout, bits, frame = _PALETTES[encoded.form]
    data, shape = encoded.data, encoded.shape
    if frame:
        most = palette.HEAD + most_bytes(layout, shape, 1)
        data = decompress_bytes(bytes(data), 1, most)
    if not layout:
        values = palette.unpack(data, math.prod(shape), bits)
        return _read_only(values.reshape(shape))
    body = len(data) - (math.prod(shape) + 7) // 8
    if body < 0:
        raise WireError(f"{len(data)} bytes are too few for a bitmap")
    marks = np.unpackbits(np.frombuffer(data, np.uint8, offset=body), bitorder="little")
    # Before the indices are made, which take 64 times the bytes of the bits.
    values = palette.unpack(data[:body], int(np.count_nonzero(marks)), bits)
    sparse = SparseArray(shape, _read_only(np.flatnonzero(marks)), _read_only(values))
    sparse.validate()
    return sparse if kind == "fcl.sparse" else _read_only(sparse.to_dense())


def _sparse_layout(tensor: SparseArray) -> tuple[str, bytes]:
    try:
        tensor.validate()
    except WireError as error:
        raise ContractError(f"a sparse tensor cannot travel: {error}") from error
    sizes = position_sizes(tensor.shape, tensor.indices)
    rows = whole_rows(tensor)
    if rows is None:
        del sizes[".rows"]
    layout = min(sizes, key=sizes.__getitem__)
    where = rows if rows is not None and layout == ".rows" else tensor.indices
    return layout, pack(layout, tensor.shape, where)


def _pack_dense(shape: tuple[int, ...], flat: Array) -> tuple[str, Array, bytes]:
    present = flat.view(UNSIGNED[flat.itemsize]) != 0
    if present.all():  # saves the search: the others only add positions
        return "", flat, b""
    height, width = position_grid(".rows", shape)
    rows = np.flatnonzero(present.reshape(height, width).any(axis=1))
    indices = np.flatnonzero(present)
    sizes = {"": 0} | position_sizes(shape, indices)
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
    return layout, stored, pack(layout, shape, where)


def _check_shape(shape: tuple[int, ...], itemsize: int, max_bytes: int) -> None:
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
    array.flags.writeable = False
    return array


# ---- positions


def position_grid(layout: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Count the rows that a layout marks, and the entries of each.

    By ``.rows`` they lie along axis 0, of which a 0-d tensor has one; else each entry
    is a row.
    """
    if layout == ".rows":
        return (shape[0] if shape else 1), math.prod(shape[1:])
    return math.prod(shape), 1


def whole_rows(tensor: SparseArray) -> Indices | None:
    """Find the rows of axis 0 that are present; None if any is so in part."""
    width = position_grid(".rows", tensor.shape)[1]
    if not width or tensor.nnz % width:
        return None
    starts, ends = tensor.indices[::width], tensor.indices[width - 1 :: width]
    if np.any(starts % width) or np.any(ends - starts != width - 1):
        return None
    return starts // width


def _gaps(indices: Indices) -> Array:
    gaps = np.diff(indices, prepend=-1) - 1
    itemsize = np.min_scalar_type(gaps.max(initial=0)).itemsize
    return gaps.astype(UNSIGNED[itemsize])


def position_sizes(shape: tuple[int, ...], indices: Indices) -> dict[str, int]:
    """Count by layout the bytes that positions take, without making them."""
    return {
        ".bitmap": (math.prod(shape) + 7) // 8,
        ".index": _gaps(indices).nbytes + 1,
        ".rows": (position_grid(".rows", shape)[0] + 7) // 8,
    }


def pack(layout: str, shape: tuple[int, ...], where: Indices) -> bytes:
    """Pack the places of the stored values."""
    if layout == ".index":
        gaps = _gaps(where)
        return gaps.tobytes() + bytes([gaps.itemsize])
    marks = np.zeros(position_grid(layout, shape)[0], np.bool_)
    marks[where] = True
    return np.packbits(marks, bitorder="little").tobytes()


def split(data: Bytes, tail: int, wire: np.dtype[Any]) -> tuple[Array, Array]:
    """Separate the stored values from the last ``tail`` bytes, without a copy."""
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
    """Unpack the stored values and their flat indices, one bit a row."""
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
    """Unpack the stored values and their flat indices, which may be out of range."""
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
    """Bound the bytes of values and positions of a tensor, by its layout."""
    if layout == ".index":
        return (itemsize + max(UNSIGNED)) * math.prod(shape) + 1
    marks = (position_grid(layout, shape)[0] + 7) // 8 if layout else 0
    return itemsize * math.prod(shape) + marks


# ---- precision


def wire_dtype(dtype: np.dtype[Any], precision: WireDtype) -> np.dtype[Any]:
    """Choose the little-endian dtype in which values of ``dtype`` travel.

    One byte a level: compression leaves of it what there is to tell.
    """
    if dtype != np.float32 or precision == "float32":
        return dtype.newbyteorder("<")
    if precision in LEVELS:
        return np.dtype("i1")
    return np.dtype("<f2" if precision == "float16" else "<u2")


def scale_bytes(dtype: np.dtype[Any], precision: WireDtype) -> int:
    """Count the bytes of the scale of values of ``dtype``; 0 for no scale."""
    return 4 if dtype == np.float32 and precision in LEVELS else 0


def to_wire(
    values: Array, precision: WireDtype, seed: int | None = None
) -> tuple[Array, bytes]:
    """Convert values, shape (k,), to what travels, and their scale.

    Rounding to a level is to the nearest, or with a seed at random.
    """
    dtype = wire_dtype(values.dtype, precision)
    if values.dtype == np.float32 and precision in LEVELS:
        return _levels(values, LEVELS[precision], seed)
    if values.dtype != np.float32 or precision != "bfloat16":
        with np.errstate(all="ignore"):  # beyond the range of float16 lies infinity
            return values.astype(dtype, copy=False), b""
    bits = values.view(np.uint32)
    high = bits >> 16
    nearest = (bits + (high & 1) + 0x7FFF) >> 16  # a tie goes to the even neighbour
    # Rounding can carry a NaN over to infinity or zero: set its quiet bit instead.
    return np.where(np.isnan(values), high | 0x40, nearest).astype(dtype), b""


def from_wire(
    stored: Array, dtype: np.dtype[Any], precision: WireDtype, scale: bytes = b""
) -> Array:
    """Undo `to_wire`."""
    if dtype == np.bool_ and np.any(stored.view(np.uint8) > 1):
        raise WireError("a value of dtype bool must be the byte 0 or 1")
    if dtype == np.float32 and precision == "bfloat16":
        return np.asarray(stored.astype(np.uint32) << 16).view(np.float32)
    if scale_bytes(dtype, precision):
        step = np.frombuffer(scale, "<f4")[0]
        if not 0 <= step < np.inf:
            raise WireError(f"the scale of {precision} must be finite, not {step}")
        most = LEVELS[precision]
        if stored.size and not -most <= stored.min() <= stored.max() <= most:
            raise WireError(f"a level of {precision} must lie in [-{most}, {most}]")
        with np.errstate(over="ignore"):  # a hostile scale: infinity is refused later
            return np.asarray(stored * step, np.float32)
    with np.errstate(invalid="ignore"):  # some processors flag a NaN
        return stored.astype(dtype, copy=False)


def _levels(values: Array, most: int, seed: int | None) -> tuple[Array, bytes]:
    scale = np.float32(np.abs(values).max(initial=0) / most)
    packed = scale.astype("<f4").tobytes()
    if not 0 < scale < np.inf:  # NaN and infinity: the receiver refuses the scale
        return np.zeros(values.shape, np.int8), packed
    steps = values / scale
    if seed is None:
        levels = np.rint(steps)
    else:
        levels = np.floor(steps + np.random.default_rng(seed).random(steps.shape))
    # A scale that was rounded down, or is the smallest float there is, exceeds them.
    return np.clip(levels, -most, most).astype(np.int8), packed


# ---- compression

LEVEL = 3
"""Higher ones take several times the time, and a few per cent off the bytes."""


def compress_bytes(data: bytes, itemsize: int) -> bytes:
    """Compress values of ``itemsize`` bytes, and what follows them, into one frame.

    The first bytes of all values stand together in it, then the second ones, and so
    on: signs and exponents of floats resemble each other, their last bits nothing.
    """
    frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=len(data))
    # A block has one code for all its bytes: each place gets blocks of its own.
    end = len(data) // itemsize * itemsize
    planes = (data[place:end:itemsize] for place in range(itemsize))
    made = [
        frame.compress(plane) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for plane in (*planes, data[end:])
        if plane
    ]
    return b"".join(made) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


def decompress_bytes(frame: bytes, itemsize: int, limit: int) -> bytes:
    """Undo `compress_bytes`, up to ``limit`` bytes; more is never allocated."""
    try:
        # Frames to be skipped may claim gigabytes without being asked for their size.
        if not frame.startswith(zstandard.FRAME_HEADER):
            raise WireError("a compressed tensor is damaged: no frame of Zstandard")
        claimed = zstandard.frame_content_size(frame)
        # Without a size the claim would be open, and -1 is what such a frame says.
        if not 0 <= claimed <= limit:
            raise WireError(
                f"a compressed tensor claims {claimed} bytes, of {limit} that it may"
            )
        opened = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a compressed tensor is damaged: {error}") from error
    if len(opened) != claimed:
        raise WireError(f"a compressed tensor has {len(opened)} bytes, not {claimed}")
    return _whole(opened, itemsize)


def _whole(planes: bytes, itemsize: int) -> bytes:
    if itemsize == 1:
        return planes
    count = len(planes) // itemsize
    whole = bytearray(planes)
    for i in range(itemsize):
        whole[i : count * itemsize : itemsize] = planes[i * count : (i + 1) * count]
    return bytes(whole)
