"""The cost of a message: the bytes that travel, and the nominal bytes of papers."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from fcl_flower.core.types import AnyArray, Arrays, Payload, SparseArray, group_kind
from fcl_flower.rounds.codec import CHUNK_BYTES, Encoded
from fcl_flower.rounds.transport import Content, Value

META = "meta"
NOMINAL_BYTES = 4

_ID = "0" * 64
"""A stand-in for the hash by which Flower knows an object, of the same length."""

_Key: TypeAlias = tuple[object, ...]
"""A key that two objects of a message share exactly if they are equal."""


def traffic(content: Content) -> Counter[str]:
    """Count the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their headers under the kind of their group. Tables of values,
    and the tree that ties the objects together, count as ``meta``. Equal objects travel
    once, and count where they stand first.
    """
    counted: Counter[str] = Counter()
    tensors = _Tensors(content)
    children: dict[_Key, int] = {}
    for group, arrays in content.tensors.items():
        before = tensors.bytes
        keys = {name: tensors.count(array) for name, array in arrays.items()}
        counted[group_kind(group)] += tensors.bytes - before
        key: _Key = ("ArrayRecord", *keys.items())
        children[key] = _object_bytes(
            "ArrayRecord", len(set(keys.values())), _names_bytes(keys)
        )
    for table in content.scalars.values():
        # Flower writes a table in its order: another order is another object.
        key = ("ConfigRecord", repr([*table.items()]))
        children[key] = _object_bytes("ConfigRecord", 0, _table_bytes(table))
    counted[META] += sum(children.values()) + _object_bytes(
        "RecordDict", len(children), _names_bytes([*content.tensors, *content.scalars])
    )
    return counted


class _Tensors:
    def __init__(self, content: Content) -> None:
        self.bytes = 0
        self._seen = set[_Key]()
        self._lengths = Counter(
            length
            for arrays in content.tensors.values()
            for array in arrays.values()
            for length in _lengths(array)
        )

    def count(self, array: Encoded) -> _Key:
        """Count a tensor unless it was counted before; return its key."""
        lengths = _lengths(array)
        chunks = self._keys(array, lengths)
        for key, length in zip(chunks, lengths, strict=True):
            self._once(key, _object_bytes("ArrayChunk", 0, length))
        distinct = list(dict.fromkeys(chunks))
        about = {
            "dtype": array.dtype,
            "shape": array.shape,
            "stype": array.form,
            "arraychunk_ids": [distinct.index(chunk) for chunk in chunks],
        }
        text = json.dumps(about)
        key = (text, *distinct)
        self._once(key, _object_bytes("Array", len(distinct), len(text.encode())))
        return key

    def _once(self, key: _Key, size: int) -> None:
        if key not in self._seen:
            self._seen.add(key)
            self.bytes += size

    def _keys(self, array: Encoded, lengths: list[int]) -> list[_Key]:
        # A chunk whose length no other has needs no hash.
        if all(self._lengths[length] == 1 for length in lengths):
            return [(length,) for length in lengths]
        return [(chunk_hash,) for chunk_hash in array.chunk_hashes]


def _lengths(array: Encoded) -> list[int]:
    whole, rest = divmod(len(array.data), CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + [rest] * (rest > 0)


# ---- tables, as protocol buffers write Flower's ConfigRecord


def _table_bytes(table: Mapping[str, Value]) -> int:
    entries = (
        _field(len(key.encode())) + _field(_value_bytes(value))
        for key, value in table.items()
    )
    return sum(map(_field, entries))


def _value_bytes(value: Value) -> int:
    if not isinstance(value, list):
        return 1 + _scalar_bytes(value)
    if value and isinstance(value[0], str | bytes):
        inner = sum(1 + _scalar_bytes(scalar) for scalar in value)
    else:  # numbers are packed under one tag
        packed = sum(map(_scalar_bytes, value))
        inner = _field(packed) if value else 0
    return 1 + _field(inner)  # a list's tag takes two bytes


def _scalar_bytes(value: object) -> int:
    match value:
        case bool():
            return 1
        case float():
            return 8
        case str():
            return _field(len(value.encode())) - 1
        case bytes():
            return _field(len(value)) - 1
        case int():  # signed in zigzag, and unsigned above
            return _varint(value if value >= 2**63 else (value << 1) ^ (value >> 63))
    raise TypeError(f"a table holds {type(value).__name__}")


def _field(size: int) -> int:
    """Count a field of so many bytes with its tag of one byte and its length."""
    return 1 + _varint(size) + size


def _varint(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _object_bytes(kind: str, children: int, body: int) -> int:
    ids = ",".join([_ID] * children)
    return len(f"{kind} {ids} {body}\0") + body


def _names_bytes(names: Iterable[str]) -> int:
    return len(json.dumps(dict.fromkeys(names, _ID)).encode())


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
        return NOMINAL_BYTES * sum(map(self._nonzero, payload.values()))

    def _nonzero(self, arrays: Arrays) -> int:
        if id(arrays) not in self._seen:
            self._seen[id(arrays)] = arrays, sum(map(_nonzero, arrays.values()))
        return self._seen[id(arrays)][1]


def _nonzero(tensor: AnyArray) -> int:
    values = tensor.values if isinstance(tensor, SparseArray) else tensor
    # NumPy compares many floats at a time, and counts them one by one.
    return int(np.count_nonzero(values != 0))
