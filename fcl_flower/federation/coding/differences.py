"""Differences of models, and what they are added to: the same on both sides."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of the server's models after a message.

    Attributes:
        version: the round after which they were these, 0 before the first.
        models: whole, by group; those that the message is about.
    """

    version: int = 0
    models: Payload = field(default_factory=dict)


NOTHING = Known()


def is_matrix(tensor: AnyArray) -> bool:
    """Return whether a tensor may be rounded to levels.

    Vectors may not: they are few bytes, and variances among them must not get negative,
    nor zero.
    """
    return tensor.dtype == np.float32 and len(tensor.shape) > 1


def entries(tensor: AnyArray, where: AnyArray) -> Array:
    """Return the entries of a dense tensor that another tensor has, flat.

    Args:
        tensor: dense.
        where: of the same shape; a `SparseArray` has some entries, another all.
    """
    flat = np.asarray(tensor).reshape(-1)
    return flat[where.indices] if isinstance(where, SparseArray) else flat


def values_of(tensor: AnyArray) -> Array:
    """Return the entries that a tensor has, flat."""
    return tensor.values if isinstance(tensor, SparseArray) else tensor.reshape(-1)


def with_values(tensor: AnyArray, values: Array) -> AnyArray:
    """Return a tensor with the same entries, of other values (flat)."""
    if isinstance(tensor, SparseArray):
        return replace(tensor, values=values)
    return values.reshape(tensor.shape)


def put(tensor: AnyArray, known: AnyArray) -> Array:
    """Return a dense tensor in which the entries of another one are replaced."""
    if isinstance(tensor, SparseArray):
        return tensor.overwrite(np.asarray(known))
    return tensor


def added(start: AnyArray, difference: AnyArray) -> AnyArray:
    """Return the entries of a difference with those of its start added.

    Both sides of the wire call this, so that they get the same bits.

    Args:
        start: dense, of the same shape.
        difference: dense, or a `SparseArray`.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # refused where it matters
        values = entries(start, difference) + values_of(difference)
    return with_values(difference, values)


def restored(payload: Payload, known: Payload) -> Payload:
    """Return an update whose differences are added to what they are of.

    Args:
        payload: decoded, from a client; not trusted.
        known: by group, what the client was sent.

    Raises:
        WireError: a difference has another shape than what it is of.
    """
    found: dict[str, Arrays] = dict(payload)
    for group in payload.keys() & known.keys():
        arrays = dict(payload[group])
        for name, tensor in arrays.items():
            start = known[group].get(name)
            if start is None or not is_matrix(tensor):
                continue
            if tensor.shape != start.shape:
                raise WireError(
                    f"{group}/{name}: a difference of shape {tensor.shape}, expected "
                    f"{start.shape}"
                )
            arrays[name] = added(start, tensor)
        found[group] = arrays
    return found


def checksum(arrays: Arrays) -> int:
    """Return what tells two versions of a group's matrices apart: their CRC-32."""
    found = 0
    for name in sorted(arrays):
        if is_matrix(arrays[name]):
            found = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), found)
    return found


def size(arrays: Mapping[str, AnyArray]) -> int:
    """Return the bytes of the matrices in a group, as they are."""
    return sum(values_of(t).nbytes for t in arrays.values() if is_matrix(t))
