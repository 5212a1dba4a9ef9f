"""Checks of an update before any algorithm may aggregate it."""

from collections.abc import Iterator

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, Payload, SparseArray, specs

_BLOCK = 2**15
"""The number of double-precision values that fit into a processor's cache."""


def finite(payload: Payload) -> None:
    """Refuse NaN and infinite values with a `WireError` that names the tensor."""
    for name, values in _floats(payload):
        flat = values.reshape(-1)
        # A finite sum of squares, which takes one pass, has finite summands.
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.dot(flat, flat)
        if not (np.isfinite(total) or np.isfinite(flat).all()):
            raise WireError(f"{name}: holds NaN or infinite values")


def no_nan(payload: Payload) -> None:
    """Refuse NaN, but not infinity, which may stand for an unknown value."""
    for name, values in _floats(payload):
        if np.isnan(values).any():
            raise WireError(f"{name}: holds NaN")


def _floats(payload: Payload) -> Iterator[tuple[str, Array]]:
    """Yield the name and the present values of each tensor of floating point."""
    for group, arrays in payload.items():
        for name, tensor in arrays.items():
            values = tensor.values if isinstance(tensor, SparseArray) else tensor
            if values.dtype.kind == "f":
                yield f"{group}/{name}", values


def norm(payload: Payload, base_norm: float, limit: float) -> None:
    """Refuse a finite update whose norm is over ``limit`` times ``base_norm``."""
    allowed, actual = limit * base_norm, _norm(payload)
    if not actual <= allowed:
        raise WireError(
            f"norm: expected at most {allowed:.3g} by federation.max_update_norm, got "
            f"{actual:.3g}; a lower training.learning_rate makes it smaller"
        )


def base_norm(state: Payload) -> float:
    """Compute the Euclidean norm of a state's groups of kind ``base``, at least 1."""
    base = {group: a for group, a in state.items() if group.split("/")[0] == "base"}
    return max(1.0, _norm(base))


def _norm(payload: Payload) -> float:
    total = 0.0
    for _, values in _floats(payload):
        # In double precision squares of float32 values are finite. Squares of float64
        # values may be infinite, which no limit allows. A copy of the whole tensor
        # would take ten times as long as blocks.
        flat = values.reshape(-1)
        with np.errstate(over="ignore"):
            for start in range(0, flat.size, _BLOCK):
                block = flat[start : start + _BLOCK].astype(np.float64)
                total += float(block @ block)
    return float(np.sqrt(total))


def same_tensors(payload: Payload, expected: Payload) -> None:
    """Refuse anything but the groups, names, shapes and dtypes of ``expected``."""
    if payload.keys() != expected.keys():
        raise WireError(f"groups {sorted(payload)}: expected {sorted(expected)}")
    for group, arrays in payload.items():
        if arrays.keys() != expected[group].keys():
            odd = sorted(arrays.keys() ^ expected[group].keys())
            raise WireError(f"{group}: tensors {odd} are missing or unknown")
        fits(group, arrays, expected[group], sparse=False)


def head_places(group: str, arrays: Arrays, count: int) -> Array:
    """Read ``classes`` of a group: ascending places in a head of ``count`` classes."""
    spec = specs(arrays).get("classes")
    if (
        spec is None
        or spec.sparse
        or spec.dtype != np.int64
        or len(spec.shape) != 1
        or not 0 < spec.shape[0] <= count
    ):
        raise WireError(
            f"{group}/classes: expected 1 to {count} integers, a dense tensor of int64"
        )
    places = np.asarray(arrays["classes"])
    if places.min() < 0 or places.max() >= count or (np.diff(places) <= 0).any():
        raise WireError(f"{group}/classes: expected ascending places of the head")
    return places


def fits(group: str, arrays: Arrays, expected: Arrays, *, sparse: bool) -> None:
    """Refuse tensors that are unknown or of another shape, dtype or storage.

    Tensors of ``expected``, which are dense, may be missing in ``arrays``. The check
    decodes no tensor of `ReceivedArrays`; call it before any tensor is read.
    """
    for name, spec in specs(arrays).items():
        if name not in expected:
            raise WireError(f"{group}/{name}: unknown tensor")
        template = expected[name]
        if spec.sparse != sparse:
            raise WireError(
                f"{group}/{name}: expected a {'sparse' if sparse else 'dense'} tensor"
            )
        if spec.shape != tuple(template.shape) or spec.dtype != template.dtype:
            raise WireError(
                f"{group}/{name}: expected {template.dtype} of shape "
                f"{tuple(template.shape)}, got {spec.dtype} of shape {spec.shape}"
            )
