"""The cost of a message: the bytes that travel, and the nominal bytes of papers."""

import json
from collections import Counter
from collections.abc import Iterable

import numpy as np

from fcl_flower.core.types import AnyArray, Arrays, Payload, SparseArray, group_kind
from fcl_flower.rounds.codec import Encoded
from fcl_flower.rounds.transport import Content

META = "meta"
NOMINAL_BYTES = 4
CHUNK_BYTES = 5 * 2**20
"""The bytes of the pieces that Flower cuts a tensor into."""

_ID = "0" * 64
"""A stand-in for the hash by which Flower knows an object, of the same length."""
_ENTRY = 7
"""The bytes of tags and lengths around a name and its value in a table."""


def traffic(content: Content) -> Counter[str]:
    """Count the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their headers under the kind of their group. Tables of values,
    and the tree that ties the objects together, count as ``meta``, within a few bytes.
    Equal objects travel once, and count where they stand first.
    """
    counted, seen = Counter[str](), set[object]()
    tree = _object_bytes("RecordDict", [*content.tensors, *content.scalars])
    for group, arrays in content.tensors.items():
        kind = group_kind(group)
        counted[kind] += 0
        keys = {n: (a.dtype, a.shape, a.form, a.digest) for n, a in arrays.items()}
        for name, key in keys.items():
            if key not in seen:
                counted[kind] += _tensor_bytes(arrays[name])
                seen.add(key)
        if (record := tuple(keys.items())) not in seen:
            tree += _object_bytes("ArrayRecord", arrays)
            seen.add(record)
    for table in content.scalars.values():
        tree += _head_bytes("ConfigRecord", 0)
        for name, value in table.items():
            tree += _ENTRY + len(name.encode()) + _value_bytes(value)
    counted[META] += tree
    return counted


def _tensor_bytes(array: Encoded) -> int:
    chunks = -(-len(array.data) // CHUNK_BYTES)
    about = {
        "dtype": array.dtype,
        "shape": array.shape,
        "stype": array.form,
        "arraychunk_ids": [*range(chunks)],
    }
    heads = _head_bytes("Array", chunks) + chunks * _head_bytes("ArrayChunk", 0)
    return heads + len(json.dumps(about)) + len(array.data)


def _object_bytes(kind: str, children: Iterable[str]) -> int:
    names = dict.fromkeys(children, _ID)
    return _head_bytes(kind, len(names)) + len(json.dumps(names))


def _head_bytes(kind: str, children: int) -> int:
    # Its kind, the hashes of its children, and its length, which has a few digits.
    return len(kind) + (len(_ID) + 1) * children + 6


def _value_bytes(value: object) -> int:
    """Count a value about as protocol buffers write it."""
    match value:
        case int():  # a bool, too
            return value.bit_length() // 7 + 1
        case float():
            return 8
        case str():
            return 2 + len(value.encode())
        case bytes():
            return 2 + len(value)
        case list():
            return 2 + sum(map(_value_bytes, value))
    raise TypeError(f"a table holds {type(value).__name__}")


class NominalBytes:
    """Counts the nominal bytes of papers: 4 for each non-zero parameter.

    FedWeIT, table 2: indices, masks of presence and headers are free there. A group
    that goes to many clients is looked at once. Keep a counter for one round only: it
    holds the groups that it has seen.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Arrays, int]] = {}

    def of(self, payload: Payload) -> int:
        """Count the nominal bytes of a payload."""
        for arrays in payload.values():
            if id(arrays) not in self._seen:
                self._seen[id(arrays)] = arrays, sum(map(_nonzero, arrays.values()))
        return NOMINAL_BYTES * sum(self._seen[id(a)][1] for a in payload.values())


def _nonzero(tensor: AnyArray) -> int:
    values = tensor.values if isinstance(tensor, SparseArray) else tensor
    # NumPy compares many floats at a time, and counts them one by one.
    return int(np.count_nonzero(values != 0))
