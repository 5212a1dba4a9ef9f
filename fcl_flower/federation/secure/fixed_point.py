"""Tensors as one vector of integers modulo 2^64, so that a sum is exact.

A vector holds `CHECKS` zeros, the number of examples, and all tensors one behind the
other, each value ``v`` as ``rint(v 2^BITS)``. Where examples weigh, ``v`` is the tensor
times their number.
"""

import json
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.core import update_checks
from fcl_flower.core.errors import ContractError, WireError, refuse
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload, Update, group_kind

BITS = 32
"""Behind the binary point."""
RANGE_BITS = 62
"""Of a sum; one more is its sign, and one is left over for rounding."""
MOST = 2.0 ** (RANGE_BITS - BITS)
"""What a sum may reach."""

Vector: TypeAlias = npt.NDArray[np.uint64]

CHECKS = 2
"""Zeros at the head of a vector: a mask that was not taken off leaves others there, but
for one case in 2^128."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a vector holds, in which order.

    Attributes:
        tensors: group, name, dtype and shape of each.
        weighted: each tensor counts as often as its client has examples.
    """

    tensors: tuple[tuple[str, str, str, tuple[int, ...]], ...]
    weighted: bool

    @classmethod
    def of(cls, payload: Payload, *, weighted: bool) -> Self:
        """Return the layout of tensors like those of ``payload``, which are dense."""
        return cls(
            tuple(
                (group, name, tensor.dtype.name, tuple(tensor.shape))
                for group, arrays in payload.items()
                for name, tensor in arrays.items()
            ),
            weighted,
        )

    @classmethod
    def from_array(cls, array: AnyArray) -> Self:
        """Return what `to_array` has written."""
        found = json.loads(np.asarray(array).tobytes())
        tensors = tuple((g, n, d, tuple(shape)) for g, n, d, shape in found["tensors"])
        return cls(tensors, found["weighted"])

    def to_array(self) -> Array:
        """Return the layout as the bytes of a text, to travel among tensors."""
        text = json.dumps({"tensors": self.tensors, "weighted": self.weighted})
        return np.frombuffer(text.encode(), np.uint8)

    @property
    def size(self) -> int:
        """Return the length of a vector."""
        entries = [int(np.prod(shape)) for *_, shape in self.tensors]
        return CHECKS + 1 + sum(entries)


def encode(update: Update, layout: Layout, clients: int) -> Vector:
    """Return what a client adds to the sum.

    Args:
        update: of the client; its groups of kind ``meta`` stay there.
        layout: of the sum. A group that the update does not have is zeros, unless
            examples weigh.
        clients: how many vectors may be added up without leaving the range.

    Raises:
        ConfigError: a value is too large to be added up so.
        ContractError: the update does not fit the layout.
        WireError: a value is not finite.
    """
    update_checks.finite(update.payload)
    weight = update.num_examples if layout.weighted else 1
    parts = {"the number of examples": np.array([float(update.num_examples)])}
    for group, name, tensor in _laid_out(update.payload, layout):
        parts[f"{group}/{name}"] = weight * np.asarray(tensor, np.float64).ravel()
    for what, values in parts.items():
        largest = float(np.abs(values).max(initial=1.0))
        if clients * largest > MOST:
            raise refuse(
                "federation.secure_aggregation",
                True,
                f"false, as {what} reaches {largest:g} and the sum over {clients} "
                f"clients may reach {MOST:g}",
            )
    found = np.concatenate([np.zeros(CHECKS), *parts.values()])
    whole: Vector = np.rint(np.ldexp(found, BITS)).astype(np.int64).view(np.uint64)
    return whole


def decode(total: Vector, layout: Layout) -> Update:
    """Return the sum of vectors as an update: the number of examples, and tensors.

    Where examples weigh, the tensors are divided by their number: it is their mean.

    Args:
        total: sum of what `encode` returned, modulo 2^64.
        layout: of it.

    Raises:
        WireError: the number of examples is none.
    """
    values = np.ldexp(total.view(np.int64).astype(np.float64), -BITS)[CHECKS:]
    examples, values = float(values[0]), values[1:]
    if examples < 0 or examples != int(examples):
        raise WireError(f"sum: expected a number of examples, got {examples:g}")
    if layout.weighted:
        values = values / max(examples, 1.0)
    payload: dict[str, dict[str, AnyArray]] = {}
    start = 0
    for group, name, dtype, shape in layout.tensors:
        end = start + int(np.prod(shape))
        tensor = values[start:end].reshape(shape)
        if np.dtype(dtype).kind in "iu":  # such as BatchNorm's count of batches
            tensor = np.rint(tensor)
        payload.setdefault(group, {})[name] = tensor.astype(dtype)
        start = end
    return Update(payload, int(examples))


def _laid_out(payload: Payload, layout: Layout) -> list[tuple[str, str, AnyArray]]:
    """Return group, name and tensor in the order of a layout.

    Raises:
        ContractError: the payload has something else.
    """
    wanted: dict[str, dict[str, tuple[int, ...]]] = {}
    for group, name, _, shape in layout.tensors:
        wanted.setdefault(group, {})[name] = shape
    sent = {g: arrays for g, arrays in payload.items() if group_kind(g) != "meta"}
    if not sent.keys() <= wanted.keys() or (
        layout.weighted and sent.keys() < {*wanted}
    ):
        raise ContractError(f"update: got {sorted(sent)}, expected {sorted(wanted)}")
    found = []
    for group, shapes in wanted.items():
        zeros: Arrays = {name: np.zeros(shape) for name, shape in shapes.items()}
        arrays = sent.get(group, zeros)
        dense = {
            name: tuple(tensor.shape)
            for name, tensor in arrays.items()
            if not isinstance(tensor, SparseArray)
        }
        if arrays.keys() != shapes.keys() or dense != shapes:
            raise ContractError(f"{group}: expected dense tensors of shapes {shapes}")
        found += [(group, name, arrays[name]) for name in shapes]
    return found
