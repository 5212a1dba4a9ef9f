"""What a message costs: the bytes that travel, and what the papers would count."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict

from fcl_flower.sparse import SparseArray
from fcl_flower.types import Payload

META = "meta"
PAPER_BYTES = 4


@dataclass(slots=True)
class Traffic:
    """Bytes of one round, both ways."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    paper_up: int = 0
    paper_down: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "up": dict(sorted(self.up.items())),
            "down": dict(sorted(self.down.items())),
            "paper_up": self.paper_up,
            "paper_down": self.paper_down,
        }


class _Stored(Protocol):
    """An object as Flower stores it: bytes of its own, and children by their hash."""

    @property
    def children(self) -> "Mapping[str, _Stored] | None": ...

    def deflate(self) -> bytes: ...


def kind(group: str) -> str:
    """Return what a group carries: ``adapters`` for ``adapters/3/1``."""
    return group.split("/", 1)[0]


def traffic(records: RecordDict) -> Counter[str]:
    """Return the bytes of a message's content as Flower sends it, by kind.

    Tensors count with their own headers under the kind of their group; every other
    record, and the tree that ties the objects together, counts as ``meta``. Equal
    objects travel once, and count where they stand first.
    """
    counted: Counter[str] = Counter()
    seen: set[str] = set()
    for group, record in records.array_records.items():
        counted[kind(group)] += _below(record, seen)
    counted[META] += len(records.deflate()) + _below(records, seen)
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


def _below(stored: _Stored, seen: set[str]) -> int:
    """Return the bytes of all that hangs on an object and is not in ``seen`` yet."""
    total = 0
    for key, child in (stored.children or {}).items():
        if key not in seen:
            seen.add(key)
            total += len(child.deflate()) + _below(child, seen)
    return total
