"""One tensor as bytes and back, in few forms; hostile bytes end as a `WireError`.

A form such as ``fcl.sparse.bitmap+levels+zstd`` says four things.

1. ``fcl.dense`` decodes to an array, ``fcl.sparse`` to a `SparseArray`.
2. ``.bitmap`` says that some entries are left out. After the values there is one bit
   for each entry, lowest bit first. All bits of a left-out entry of an array are zero,
   so that -0.0 and NaN survive. Without a bitmap all entries are there, in C order.
3. A suffix says how float32 values are written; other values are written as they are.
   ``+float16`` and ``+bfloat16`` are rounded to the nearest, ties to even. ``+levels``
   has a step s, a little-endian float32, and then an integer q in [-127, 127] for each
   value, in one byte: the value is s q.
4. ``+zstd`` says that all of it is a frame of Zstandard. The bytes of the values are
   sorted by their place in it: signs and exponents of floats resemble each other.

Values that are multiples of the smallest of them, such as those of FedWeIT's adapters,
travel as levels without loss. A precision with L levels on each side of zero (127, 7 or
1) rounds to them, with s = max |x| / L: uniform quantisation of a whole tensor. Rounded
at random, up with the probability that the fraction is, s q has the mean x (Alistarh et
al., QSGD, NeurIPS 2017, section 3.1; Wen et al., TernGrad, NeurIPS 2017, for L = 1).
Rounded to the nearest it is never further from x than zero is, which error feedback
needs (Karimireddy et al., ICML 2019, assumption A).
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np
import zstandard

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.types import (
    AnyArray,
    Array,
    SparseArray,
    TensorSpec,
    group_kind,
)

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import ServerStrategy
    from fcl_flower.config.run_config import FederationSection

Bytes: TypeAlias = bytes | memoryview
"""The bytes of a tensor; a message of several pieces is one memory for its tensors."""
WireDtype: TypeAlias = Literal[
    "float32", "float16", "bfloat16", "int8", "int4", "ternary"
]
LEVELS: Final[Mapping[str, int]] = {"int8": 127, "int4": 7, "ternary": 1}
"""The number of levels on each side of zero, by the precisions that have levels."""

_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_STORED: Final = {
    "": "<f4",
    "+float16": "<f2",
    "+bfloat16": "<u2",
    "+levels": "i1",
}
"""The dtype of float32 values on the wire, by suffix."""
_FORMS: Final = {
    f"{layout}{suffix}{frame}": (layout, suffix, frame)
    for layout in ("fcl.dense", "fcl.dense.bitmap", "fcl.sparse.bitmap")
    for suffix in _STORED
    for frame in ("", "+zstd")
}
_MOST_LEVELS: Final = 127
_MAX_AXES: Final = 64  # NumPy's own limit


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The form in which the tensors of a run travel.

    float16 and bfloat16 are for all float32 tensors. Levels are only for the groups
    that the algorithm names. Sums, counts and statistics stay exact.

    Attributes:
        dtype: the precision of float32 tensors.
        feedback: whether the loss of rounding is added to the next difference.
        differences: the kinds of groups that are a ``model`` (`algorithms.base.Role`).
        rounded: the kinds of groups that are ``private``.
    """

    dtype: WireDtype = "float32"
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
            section.error_feedback,
            strategy.kinds("model"),
            strategy.kinds("private"),
        )

    def precision(self, group: str) -> WireDtype:
        """Choose the precision of a group's float32 tensors that are no differences."""
        if self.dtype in LEVELS and group_kind(group) not in self.rounded:
            return "float32"
        return self.dtype

    def by_difference(self, group: str) -> bool:
        """Tell whether a group travels as the difference to what the receiver has."""
        return self.dtype in LEVELS and group_kind(group) in self.differences


EXACT = WireFormat()


def is_matrix(tensor: AnyArray) -> bool:
    """Tell whether a tensor may be rounded to levels.

    Vectors may not. They are few bytes, and a rounded variance could be zero.
    """
    return tensor.dtype == np.float32 and len(tensor.shape) > 1


# ---- tensors


@dataclass(frozen=True)
class Encoded:
    """One tensor in its byte form.

    Attributes:
        dtype: of the decoded tensor, by NumPy's name.
        shape: of the decoded tensor.
        form: how to read ``data``, such as ``fcl.dense+float16``.
        data: the step if there is one, the values, the bits of the entries.
    """

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: Bytes

    @cached_property
    def digest(self) -> bytes:
        """The hash of its bytes, made once: many clients may receive one tensor."""
        return hashlib.sha256(self.data).digest()


def encode(
    tensor: AnyArray, precision: WireDtype = "float32", *, seed: int | None = None
) -> Encoded:
    """Encode a tensor, compressed where that is smaller.

    Args:
        tensor: of bool, integer or float dtype. Zeros of a dense array may be left
            out; all entries of a `SparseArray` stay, explicit zeros too.
        precision: of float32 values on the wire; values beyond the range of float16
            become infinite. Other dtypes travel as they are.
        seed: of rounding to levels at random; None rounds to the nearest.

    Raises:
        ContractError: the dtype cannot travel.
        WireError: a sparse tensor contradicts itself.
    """
    dtype = tensor.dtype.name
    if dtype not in _DTYPES:
        raise ContractError(
            f"a tensor of dtype {dtype} cannot travel, only {', '.join(_DTYPES)}"
        )
    entries = tensor.values if isinstance(tensor, SparseArray) else tensor.reshape(-1)
    values = np.ascontiguousarray(entries, _DTYPES[dtype])
    suffix, step, stored = _written(values, precision, seed)
    layout, bits = "fcl.dense", b""
    if isinstance(tensor, SparseArray):
        tensor.validate()
        layout, bits = "fcl.sparse.bitmap", tensor.bitmap().tobytes()
    else:
        present = stored.view(f"u{stored.itemsize}") != 0
        zeros = len(stored) - int(np.count_nonzero(present))
        if zeros * stored.itemsize > (len(stored) + 7) // 8:
            layout, stored = "fcl.dense.bitmap", stored[present]
            bits = np.packbits(present, bitorder="little").tobytes()
    form, data = f"{layout}{suffix}+zstd", compress(step, stored, bits)
    if len(data) >= len(step) + stored.nbytes + len(bits):
        form, data = f"{layout}{suffix}", step + stored.tobytes() + bits
    return Encoded(dtype, tensor.shape, form, data)


def spec(encoded: Encoded, max_bytes: int = 2**31) -> TensorSpec:
    """Read the shape, dtype and storage of a tensor; nothing is decoded or allocated.

    ``max_bytes`` limits the dense size, also of a `SparseArray`, for `to_dense`.

    Raises:
        WireError: the form, the dtype or the shape is unknown, impossible or too large.
    """
    if encoded.form not in _FORMS:
        raise WireError(f"unknown form {encoded.form[:40]!r}")
    if encoded.dtype not in _DTYPES:
        raise WireError(f"unknown dtype {encoded.dtype[:40]!r}")
    layout, suffix, _ = _FORMS[encoded.form]
    dtype = np.dtype(encoded.dtype)
    if suffix and dtype != np.float32:
        raise WireError(f"form {encoded.form} holds float32, not {dtype}")
    shape = encoded.shape
    if len(shape) > _MAX_AXES:
        raise WireError(f"a tensor of {len(shape)} axes; at most {_MAX_AXES} allowed")
    if any(length < 0 for length in shape):
        raise WireError("the shape holds a negative length")
    # NumPy refuses (0, 2**62), too: an empty axis does not excuse other axes.
    claimed = math.prod(max(length, 1) for length in shape) * dtype.itemsize
    limit = min(max_bytes, 2**63 - 1)  # flat indices are int64
    if claimed > limit:
        raise WireError(f"the shape claims more than {limit} bytes")
    return TensorSpec(shape, dtype, layout == "fcl.sparse.bitmap")


def decode(encoded: Encoded, max_bytes: int = 2**31) -> AnyArray:
    """Decode a tensor, read-only; trust nothing in ``encoded``.

    Memory stays within a small multiple of the received bytes. Left-out zeros and
    compressed values may claim more, up to a small multiple of the dense size
    (``max_bytes``): check the tensor's `spec` first, with the same arguments.

    Raises:
        WireError: the bytes are not a tensor of this form, dtype and shape.
    """
    about = spec(encoded, max_bytes)
    layout, suffix, frame = _FORMS[encoded.form]
    stored_as = np.dtype(_STORED[suffix]) if suffix else _DTYPES[encoded.dtype]
    width, entries = stored_as.itemsize, math.prod(encoded.shape)
    head = 4 if suffix == "+levels" else 0  # the step
    tail = 0 if layout == "fcl.dense" else (entries + 7) // 8
    data = encoded.data
    if frame:
        data = decompress(data, head + entries * width + tail)
    body = len(data) - head - tail
    if body < 0 or body % width:
        raise WireError(
            f"{len(data)} bytes are not {head + tail} bytes beside values of {width} "
            "bytes"
        )
    # Bits are counted before indices are made, which take 64 times their bytes.
    packed = np.frombuffer(data, np.uint8, tail, head + body)
    present = np.unpackbits(packed, bitorder="little").view(np.bool_)
    count = int(np.count_nonzero(present)) if tail else entries
    if body // width != count:
        where = "the bitmap marks" if tail else f"the shape {encoded.shape} holds"
        raise WireError(f"{where} {count} values, not {body // width}")
    stored = np.frombuffer(data, stored_as, count, head)
    if frame:
        planes = np.frombuffer(data, np.uint8, body, head).reshape(width, -1)
        stored = np.ascontiguousarray(planes.T).view(stored_as).reshape(-1)
    values = _read(stored, suffix, bytes(data[:head]), about.dtype)
    if layout == "fcl.dense":
        return _read_only(values.reshape(encoded.shape))
    indices = np.flatnonzero(present)
    sparse = SparseArray(encoded.shape, _read_only(indices), _read_only(values))
    sparse.validate()
    return sparse if about.sparse else _read_only(sparse.to_dense())


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


# ---- values


def _written(
    values: Array, precision: WireDtype, seed: int | None
) -> tuple[str, bytes, Array]:
    """Write values: the suffix, the step of levels, and what is stored."""
    if values.dtype != np.float32:
        return "", b"", values
    most = LEVELS.get(precision, _MOST_LEVELS)
    exact = exact_levels(values, most)
    if exact is not None and len(values) > 1:
        step, levels = exact
        return "+levels", step.tobytes(), levels
    if precision in LEVELS:
        step = np.float32(np.abs(values).max(initial=0) / most)
        return "+levels", step.tobytes(), _levels(values, step, most, seed)
    if precision == "float16":
        with np.errstate(all="ignore"):  # beyond the range of float16 lies infinity
            return "+float16", b"", values.astype("<f2")
    if precision == "bfloat16":
        return "+bfloat16", b"", _bfloat16(values)
    return "", b"", values


def exact_levels(values: Array, most: int) -> tuple[np.float32, Array] | None:
    """Find the step, and the levels of at most ``most``, that give all values exactly.

    The step is the smallest size of a value: of the many values that a client has
    rounded, one is at the first level. Most tensors have no such step.
    """
    sizes = np.abs(values)
    step = np.float32(sizes.min(initial=np.inf, where=sizes > 0))
    if not float(sizes.max(initial=0)) < (most + 0.5) * float(step) < np.inf:
        return None
    levels = np.rint(values / step).astype(np.int8)
    exact = _multiplied(levels, step).view("u4") == values.view("u4")
    return (step, levels) if exact.all() else None


def _levels(values: Array, step: np.float32, most: int, seed: int | None) -> Array:
    if not 0 < step < np.inf:  # NaN and infinity: the receiver refuses the step
        return np.zeros(values.shape, np.int8)
    steps = values / step
    if seed is None:
        levels = np.rint(steps)
    else:
        levels = np.floor(steps + np.random.default_rng(seed).random(steps.shape))
    # With a step that was rounded down, or the smallest float, levels exceed the most.
    return np.clip(levels, -most, most).astype(np.int8)


def _multiplied(levels: Array, step: np.float32) -> Array:
    with np.errstate(over="ignore"):  # a hostile step: infinity is refused later
        return np.asarray(levels * step, np.float32)


def _bfloat16(values: Array) -> Array:
    bits = values.view(np.uint32)
    high = bits >> 16
    nearest = (bits + (high & 1) + 0x7FFF) >> 16  # a tie goes to the even neighbour
    # Rounding can carry a NaN over to infinity or zero: its quiet bit is set instead.
    return np.where(np.isnan(values), high | 0x40, nearest).astype("<u2")


def _read(stored: Array, suffix: str, head: bytes, dtype: np.dtype[Any]) -> Array:
    if suffix == "+levels":
        step = np.frombuffer(head, "<f4")[0]
        if not 0 <= step < np.inf:
            raise WireError(f"the step of levels must be finite, not {step}")
        if stored.size and stored.min() < -_MOST_LEVELS:
            raise WireError(f"a level must lie in [-{_MOST_LEVELS}, {_MOST_LEVELS}]")
        return _multiplied(stored, step)
    if suffix == "+bfloat16":
        return np.asarray(stored.astype(np.uint32) << 16).view(np.float32)
    if dtype == np.bool_ and np.any(stored.view(np.uint8) > 1):
        raise WireError("a value of dtype bool must be the byte 0 or 1")
    with np.errstate(invalid="ignore"):  # some processors flag a NaN
        return stored.astype(dtype, copy=False)


# ---- compression

LEVEL = 1
"""Higher levels of Zstandard take twice the time, and floats stay as large."""


def compress(head: bytes, stored: Array, tail: bytes) -> bytes:
    """Compress a step, values and bits into one frame.

    The first bytes of all values stand together in it, then the second bytes, and so
    on. Each place has separate blocks, as a block has one code for all its bytes.
    """
    bytes_of_values = stored.view(np.uint8).reshape(-1, stored.itemsize)
    parts = [head, *np.ascontiguousarray(bytes_of_values.T), tail]
    size = len(head) + stored.nbytes + len(tail)
    frame = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=size)
    pieces = [
        frame.compress(part) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for part in parts
        if len(part)
    ]
    return b"".join(pieces) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)


def decompress(frame: Bytes, most: int) -> bytes:
    """Open a frame of Zstandard; more than ``most`` bytes are never allocated.

    Raises:
        WireError: the bytes are no frame, are damaged, or claim too much.
    """
    # A skippable frame may claim gigabytes, whatever its content size says.
    if bytes(frame[:4]) != zstandard.FRAME_HEADER:
        raise WireError("a compressed tensor is damaged: no frame of Zstandard")
    try:
        claimed = zstandard.frame_content_size(frame)  # -1 without a size
        if not 0 <= claimed <= most:
            raise WireError(
                f"a compressed tensor claims {claimed} bytes, of {most} that it may"
            )
        opened = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"a compressed tensor is damaged: {error}") from error
    if len(opened) != claimed:
        raise WireError(f"a compressed tensor has {len(opened)} bytes, not {claimed}")
    return opened
