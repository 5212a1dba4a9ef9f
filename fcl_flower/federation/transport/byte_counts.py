"""What a message costs: the bytes that travel, and the nominal bytes of papers."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from flwr.app import RecordDict

from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Payload, group_kind

META = "meta"
NOMINAL_BYTES = 4


class _Stored(Protocol):
    """An object as Flower stores it: bytes of its own, and children by their hash."""

    @property
    def children(self) -> "Mapping[str, _Stored] | None": ...

    def deflate(self) -> bytes: ...


def traffic(records: RecordDict) -> Counter[str]:
    """Return the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their own headers under the kind of their group; every other
    record, and the tree that ties the objects together, counts as ``meta``. Equal
    objects travel once, and count where they stand first.
    """
    counted: Counter[str] = Counter()
    seen: set[str] = set()
    for group, record in records.array_records.items():
        counted[group_kind(group)] += _below(record, seen)
    counted[META] += len(records.deflate()) + _below(records, seen)
    return counted


def nominal_bytes(payload: Payload) -> int:
    """Return the nominal bytes of papers: 4 for each non-zero parameter.

    FedWeIT, table 2: indices, masks of presence and headers are free there.
    """
    return NOMINAL_BYTES * sum(
        int(np.count_nonzero(t.values if isinstance(t, SparseArray) else t))
        for arrays in payload.values()
        for t in arrays.values()
    )


def _below(stored: _Stored, seen: set[str]) -> int:
    """Return the bytes of all that hangs on an object and is not in ``seen`` yet."""
    total = 0
    for key, child in (stored.children or {}).items():
        if key not in seen:
            seen.add(key)
            total += len(child.deflate()) + _below(child, seen)
    return total
