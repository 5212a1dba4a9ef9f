"""What a message costs: the bytes that travel, and the nominal bytes of papers."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from flwr.app import Array, RecordDict

from fcl_flower.core.types import AnyArray, Arrays, Payload, SparseArray, group_kind
from fcl_flower.flower.transport import CHUNK_BYTES

META = "meta"
NOMINAL_BYTES = 4


_ID = "0" * 64
"""As long as the hash by which Flower knows an object; which it is costs nothing."""

_Key: TypeAlias = tuple[object, ...]
"""What two objects of a message have in common if they are equal, and only then."""


def traffic(records: RecordDict) -> Counter[str]:
    """Count the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their own headers under the kind of their group; every other
    record, and the tree that ties the objects together, counts as ``meta``. Equal
    objects travel once, and count where they stand first.
    """
    counted: Counter[str] = Counter()
    tensors = _Tensors(records)
    children: dict[_Key, int] = {}
    for group, record in records.array_records.items():
        before = tensors.bytes
        arrays = {name: tensors.count(array) for name, array in record.items()}
        counted[group_kind(group)] += tensors.bytes - before
        key: _Key = ("ArrayRecord", *arrays.items())
        children[key] = _object_bytes(
            "ArrayRecord", len(set(arrays.values())), _names_bytes(arrays)
        )
    for other in (*records.config_records.values(), *records.metric_records.values()):
        content = other.deflate()
        children[(content,)] = len(content)
    counted[META] += sum(children.values()) + _object_bytes(
        "RecordDict", len(children), _names_bytes(records)
    )
    return counted


class _Tensors:
    def __init__(self, records: RecordDict) -> None:
        self.bytes = 0
        self._seen = set[_Key]()
        self._lengths = Counter(
            length
            for record in records.array_records.values()
            for array in record.values()
            for length in _lengths(array)
        )

    def count(self, array: Array) -> _Key:
        """Count a tensor unless it has been, and name what it is known by."""
        lengths = _lengths(array)
        chunks = self._keys(array, lengths)
        for key, length in zip(chunks, lengths, strict=True):
            self._once(key, _object_bytes("ArrayChunk", 0, length))
        distinct = list(dict.fromkeys(chunks))
        about = {
            "dtype": array.dtype,
            "shape": array.shape,
            "stype": array.stype,
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

    def _keys(self, array: Array, lengths: list[int]) -> list[_Key]:
        # A chunk whose length no other has needs no hash. Flower keeps its hashes with
        # the tensor, which many clients may receive.
        if all(self._lengths[length] == 1 for length in lengths):
            return [(length,) for length in lengths]
        return [(known_by,) for known_by, _ in array.slice_array()]


def _lengths(array: Array) -> list[int]:
    whole, rest = divmod(len(array.data), CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + [rest] * (rest > 0)


def _object_bytes(kind: str, children: int, body: int) -> int:
    ids = ",".join([_ID] * children)
    return len(f"{kind} {ids} {body}\0") + body


def _names_bytes(names: Iterable[str]) -> int:
    return len(json.dumps(dict.fromkeys(names, _ID)).encode())


def nominal_bytes(payload: Payload) -> int:
    """Count the nominal bytes of papers: 4 for each non-zero parameter.

    FedWeIT, table 2: indices, masks of presence and headers are free there.
    """
    return NominalBytes().of(payload)


class NominalBytes:
    """Counts nominal bytes; a group that goes to many clients is looked at once.

    Keep one for one round only: it holds the groups that it has seen.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Arrays, int]] = {}

    def of(self, payload: Payload) -> int:
        """Count the nominal bytes of a payload; see `nominal_bytes`."""
        return NOMINAL_BYTES * sum(map(self._nonzero, payload.values()))

    def _nonzero(self, arrays: Arrays) -> int:
        if id(arrays) not in self._seen:
            found = sum(map(_nonzero, arrays.values()))
            self._seen[id(arrays)] = arrays, found
        return self._seen[id(arrays)][1]


def _nonzero(tensor: AnyArray) -> int:
    values = tensor.values if isinstance(tensor, SparseArray) else tensor
    # NumPy compares many floats at a time, and counts them one by one.
    return int(np.count_nonzero(values != 0))
