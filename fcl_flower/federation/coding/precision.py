"""float32 values at a lower precision: half as many bits, or a few levels of a scale.

With L levels on each side of zero (127, 7 or 1) and the scale s = max |x| / L a value x
becomes the integer q in [-L, L] next to x / s, and is read as s q: uniform quantisation
of a whole tensor. Rounded at random, up with the probability that the fraction is, s q
has the mean x (Alistarh et al., QSGD, NeurIPS 2017, section 3.1; Wen et al., TernGrad,
NeurIPS 2017, for L = 1). Rounded to the nearest it is never further from x than zero
is, which error feedback needs (Karimireddy et al., ICML 2019, assumption A).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array

WireDtype: TypeAlias = Literal[
    "float32", "float16", "bfloat16", "int8", "int4", "ternary"
]
LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {"int8": 127, "int4": 7, "ternary": 1}
)
"""How many there are on each side of zero, of the precisions that have a scale."""


def wire_dtype(dtype: np.dtype[Any], precision: WireDtype) -> np.dtype[Any]:
    """Return the little-endian dtype in which values of ``dtype`` travel.

    One byte a level: compression leaves of it what there is to tell.
    """
    if dtype != np.float32 or precision == "float32":
        return dtype.newbyteorder("<")
    if precision in LEVELS:
        return np.dtype("i1")
    return np.dtype("<f2" if precision == "float16" else "<u2")


def scale_bytes(dtype: np.dtype[Any], precision: WireDtype) -> int:
    """Return how many bytes the scale of values of ``dtype`` takes; 0 for no scale."""
    return 4 if dtype == np.float32 and precision in LEVELS else 0


def to_wire(
    values: Array, precision: WireDtype, seed: int | None = None
) -> tuple[Array, bytes]:
    """Return values as they travel, and their scale; bfloat16 as its bits.

    Args:
        values: shape (k,), of native byte order.
        precision: of float32; other dtypes travel as they are.
        seed: of rounding to a level at random; None for the nearest.
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
    """Return the values of ``dtype`` that `to_wire` turned into ``stored``.

    Raises:
        WireError: a bool is neither 0 nor 1, a level does not exist, or the scale is
            negative, NaN or infinite.
    """
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
    """Return the nearest levels of float32 values, or drawn ones, and the scale."""
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
