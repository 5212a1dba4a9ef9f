"""What a message costs: the bytes that travel, and what the papers would count."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from flwr.app import RecordDict

from fcl_flower.sparse import SparseArray
from fcl_flower.types import Payload

META = "meta"
PAPER_BYTES = 4


class _Stored(Protocol):
    """An object as Flower stores it: bytes of its own, and children."""

    def deflate(self) -> bytes: ...

    @property
    def children(self) -> "Mapping[str, _Stored] | None": ...


def kind(group: str) -> str:
    """Return what a group carries: ``adapters`` for ``adapters/3/1``."""
    return group.split("/", 1)[0]


def traffic(records: RecordDict) -> Counter[str]:
    """Return the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their own headers under the kind of their group; every other
    record, and the tree that ties the objects together, counts as ``meta``.
    """
    counted = Counter({META: _stored_bytes(records)})
    for group, record in records.array_records.items():
        size = sum(_stored_bytes(array) for array in record.values())
        counted[kind(group)] += size
        counted[META] -= size
    return counted


def paper_bytes(payload: Payload) -> int:
    """Return the papers' count: non-zero parameters times 4 bytes.

    FedWeIT, table 2: indices, masks of presence and headers are free there.
    """
    return PAPER_BYTES * sum(
        int(np.count_nonzero(t.values if isinstance(t, SparseArray) else t))
        for arrays in payload.values()
        for t in arrays.values()
    )


def _stored_bytes(stored: _Stored) -> int:
    children = stored.children or {}
    return len(stored.deflate()) + sum(_stored_bytes(c) for c in children.values())
