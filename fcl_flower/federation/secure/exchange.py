"""What travels beside the vectors: tables of bytes by client."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from flwr.app import ConfigRecord, RecordDict

from fcl_flower.core.errors import WireError

Table: TypeAlias = Mapping[int, tuple[bytes, ...]]
"""Some columns of bytes by client."""

RECORD = "fcl.secure"
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"
"""Names of the three queries; between the second and the third lies the training."""

SUM_OF = "meta/sum"
"""The group by which the server says over whom, and of what, a sum is: `clients` and
`layout`."""

PRESENT, ABSENT = b"present", b"absent"
"""Whether the masked vector of a client is in the sum."""

MAX_CELL = 2**14
"""Bytes of the largest cell: a few times those of a private key's encrypted share."""


def to_records(table: Table) -> RecordDict:
    """Return a table as it travels."""
    columns = zip(*table.values(), strict=True)
    cells = {str(number): list(column) for number, column in enumerate(columns)}
    return RecordDict({RECORD: ConfigRecord({"clients": list(table), **cells})})


def from_records(
    records: RecordDict, columns: int, clients: Iterable[int]
) -> dict[int, tuple[bytes, ...]]:
    """Return a table from a peer.

    Args:
        records: as they came.
        columns: of the table.
        clients: who must be in it, and nobody else.

    Raises:
        WireError: it is no such table, or a cell is too large.
    """
    found = dict(records.config_records.get(RECORD, ConfigRecord()))
    numbers, wanted = found.pop("clients", None), sorted(clients)
    if not isinstance(numbers, list) or sorted(map(int, numbers)) != wanted:
        raise WireError(f"{RECORD}: expected a row for each of {wanted}")
    cells = [
        [cell for cell in column if isinstance(cell, bytes) and len(cell) <= MAX_CELL]
        for number in range(columns)
        if isinstance(column := found.pop(str(number), None), list)
    ]
    if found or [len(column) for column in cells] != [len(wanted)] * columns:
        raise WireError(f"{RECORD}: expected {columns} columns of short bytes")
    return dict(zip(map(int, numbers), zip(*cells, strict=True), strict=True))


def listed(records: RecordDict) -> list[int]:
    """Return the clients of a table from a peer who decides who is in it."""
    numbers = records.config_records[RECORD]["clients"]
    return [int(number) for number in numbers] if isinstance(numbers, list) else []
