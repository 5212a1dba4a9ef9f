"""In which form the tensors of a run travel: precision, differences, compression."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    SparseArray,
    group_kind,
)
from fcl_flower.federation.codec import LEVELS, WireDtype

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import ServerStrategy
    from fcl_flower.config.sections import FederationSection


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What the settings of a run and its algorithm make of a tensor on its way.

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
        """Return the format of a run.

        Args:
            section: its settings.
            strategy: the server side of its algorithm.
        """
        return cls(
            section.wire_dtype,
            section.wire_compression == "zstd",
            section.error_feedback,
            strategy.kinds("model"),
            strategy.kinds("rounded"),
        )

    def precision(self, group: str) -> WireDtype:
        """Return how float32 tensors of a group travel, if not as differences."""
        if self.dtype in LEVELS and group_kind(group) not in self.rounded:
            return "float32"
        return self.dtype

    def by_difference(self, group: str) -> bool:
        """Return whether a group travels as the difference to what is known of it."""
        return self.dtype in LEVELS and group_kind(group) in self.differences


EXACT = WireFormat()


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
