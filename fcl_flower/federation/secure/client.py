"""The client's part of a sum: keys, shares of them, a masked vector, and its unmasking.

What it keeps between the messages of a round lies in Flower's context, never in a file,
and is gone when it has answered for the last time.
"""

import base64
import struct
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from cryptography.fernet import Fernet, InvalidToken
from flwr.app import ConfigRecord, Context, RecordDict

from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.config.sections import FederationSection
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Arrays, Update
from fcl_flower.federation.secure import crypto

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

SHARES_HEAD = struct.Struct("<QQI")
"""Before a seed's and a key's share: from whom, for whom, and bytes of the first."""

MAX_CELL = 2**14
"""Bytes of the largest cell: a few times those of a private key's encrypted share."""


def to_records(table: Table) -> RecordDict:
    """Write a table as it travels."""
    columns = zip(*table.values(), strict=True)
    cells = {str(number): list(column) for number, column in enumerate(columns)}
    return RecordDict({RECORD: ConfigRecord({"clients": list(table), **cells})})


def from_records(
    records: RecordDict, columns: int, clients: Iterable[int] | None = None
) -> dict[int, tuple[bytes, ...]]:
    """Read a table from a peer, with a row for each of these clients and nobody else.

    Without ``clients`` the peer decides who is in it.

    Raises:
        WireError: it is no such table, or a cell is too large.
    """
    found = dict(records.config_records.get(RECORD, ConfigRecord()))
    numbers = found.pop("clients", None)
    numbers = [*map(int, numbers)] if isinstance(numbers, list) else []
    wanted = sorted(numbers if clients is None else clients)
    if sorted(numbers) != wanted:
        raise WireError(f"{RECORD}: expected a row for each of {wanted}")
    cells = [
        [cell for cell in column if isinstance(cell, bytes) and len(cell) <= MAX_CELL]
        for number in range(columns)
        if isinstance(column := found.pop(str(number), None), list)
    ]
    if found or [len(column) for column in cells] != [len(wanted)] * columns:
        raise WireError(f"{RECORD}: expected {columns} columns of short bytes")
    return dict(zip(numbers, zip(*cells, strict=True), strict=True))


KEPT = "fcl.secure-aggregation"
SAYS = "secure aggregation: "


class ClientSide:
    """One client in one attempt at a sum, from what it keeps to what it answers.

    Each of the four calls is one message, in this order; out of order they are refused.
    A second vector under the same masks would show the difference of the two, and both
    shares of one client all of its masks.
    """

    def __init__(self, context: Context, section: FederationSection) -> None:
        """Continue what is kept in Flower's context; training may replace it."""
        self._context = context
        self._before = dict(context.state.config_records.get(KEPT, ConfigRecord()))
        self._section = section
        self._client = NodeConfig.of(context.node_config).partition_id

    def advertise_keys(self) -> RecordDict:
        """Begin anew; return the public keys, of masks and of messages to others."""
        private = [
            crypto.new_secret(),
            crypto.new_secret(),
        ]  # of masks, and of messages
        public = [crypto.public_key(secret) for secret in private]
        self._keep("keys", private=private, public=public)
        return to_records({self._client: tuple(public)})

    def share_keys(self, records: RecordDict) -> RecordDict:
        """Seal shares of the key and of the seed of the masks for each other client.

        The records are public keys of all clients of the sum, this one's too.

        Raises:
            WireError: a key is missing, wrong or there twice, or there are too few.
        """
        kept = self._kept("keys")
        roster = from_records(records, 2)
        mask_key, seal_key = kept["private"]
        threshold = self._section.sum_threshold(len(roster))
        if len(roster) < threshold:
            raise WireError(
                f"{SAYS}expected at least {threshold} clients, got {len(roster)}"
            )
        if roster.get(self._client) != tuple(kept["public"]):
            raise WireError(f"{SAYS}these are not the keys that were sent")
        keys = [key for row in roster.values() for key in row]
        if len({*keys}) < len(keys):
            raise WireError(f"{SAYS}two clients have one key")
        seed = crypto.new_secret()
        shares = zip(
            roster,
            crypto.share_secret(seed, threshold, len(roster)),
            crypto.share_secret(mask_key, threshold, len(roster)),
            strict=True,
        )
        sealed, own = {}, [b"", b""]
        for other, of_seed, of_key in shares:
            if other == self._client:
                own = [of_seed, of_key]
                continue
            head = SHARES_HEAD.pack(self._client, other, len(of_seed))
            seal = _seal(seal_key, roster[other][1])
            sealed[other] = (seal.encrypt(head + of_seed + of_key),)
        self._keep(
            "shares",
            private=[mask_key, seal_key],
            clients=list(roster),
            mask_keys=[row[0] for row in roster.values()],
            seal_keys=[row[1] for row in roster.values()],
            own=[seed, *own],
        )
        return to_records(sealed)

    def masked(self, update: Update, sum_of: Arrays) -> Update:
        """Mask an update for a sum (`SUM_OF`): its vector alone tells nothing.

        Raises:
            ConfigError: a value is too large for the vector.
            ContractError: the update does not fit the layout.
            WireError: there are too few clients, or unknown ones.
        """
        kept = self._kept("shares")
        if sum_of.keys() != {"clients", "layout"}:
            raise WireError(f"{SUM_OF}: got {sorted(sum_of)}, expected clients, layout")
        layout = crypto.Layout.from_array(sum_of["layout"])
        clients = [int(number) for number in np.asarray(sum_of["clients"])]
        known = dict(zip(kept["clients"], kept["mask_keys"], strict=True))
        self._check_clients(clients, known)
        vector = crypto.encode_fixed_point(update, layout, len(known))
        others = {c: known[c] for c in clients if c != self._client}
        seed, mask_key = kept["own"][0], kept["private"][0]
        vector = vector + crypto.own_mask(seed, len(vector))
        vector = vector + crypto.pair_masks(self._client, mask_key, others, len(vector))
        self._keep("masked", **{**kept, "summed": clients})
        return Update({"masked": {"vector": vector}}, 0, update.metrics)

    def unmask(self, records: RecordDict) -> RecordDict:
        """Give one share for each client: of its seed if its vector came, or its key.

        The records say whether it came, and have the shares that the client sealed for
        this one. What cannot be opened is answered by none.

        Raises:
            WireError: too few vectors came, or this is not what was asked before.
        """
        kept = self._kept("masked")
        del self._context.state[KEPT]
        asked = from_records(records, 2, kept["summed"])
        present = [c for c, (state, _) in asked.items() if state == PRESENT]
        if any(state not in (PRESENT, ABSENT) for state, _ in asked.values()):
            raise WireError(f"{SAYS}a client is neither here nor absent")
        keys = dict(zip(kept["clients"], kept["seal_keys"], strict=True))
        self._check_clients(present, keys)
        revealed: dict[int, tuple[bytes, ...]] = {}
        for owner, (state, sealed) in asked.items():
            of_seed, of_key = kept["own"][1:]
            if owner != self._client:
                seal = _seal(kept["private"][1], keys[owner])
                of_seed, of_key = self._opened(seal, sealed, owner)
            revealed[owner] = (of_seed if state == PRESENT else of_key,)
        return to_records(revealed)

    def _opened(self, seal: Fernet, sealed: bytes, owner: int) -> tuple[bytes, bytes]:
        """Open the shares that an owner sealed for this client; empty if it did not."""
        try:
            plain = seal.decrypt(sealed)
            source, target, length = SHARES_HEAD.unpack_from(plain)
        except (InvalidToken, struct.error):
            return b"", b""
        if (source, target) != (owner, self._client):
            return b"", b""
        of_both = plain[SHARES_HEAD.size :]
        return of_both[:length], of_both[length:]

    def _check_clients(self, summed: list[int], known: Mapping[int, object]) -> None:
        threshold, different = self._section.sum_threshold(len(known)), {*summed}
        enough = len(different) >= max(threshold, len(summed))
        if not enough or not different <= known.keys():
            raise WireError(
                f"{SAYS}expected at least {threshold} of the clients {sorted(known)}, "
                f"got {sorted(summed)}"
            )
        if self._client not in summed:
            raise WireError(f"{SAYS}this client is not in the sum")

    def _keep(self, step: str, **values: Any) -> None:  # noqa: ANN401
        self._context.state[KEPT] = ConfigRecord({"step": step, **values})

    def _kept(self, step: str) -> dict[str, Any]:
        kept = dict(self._before)
        if kept.pop("step", None) != step:
            raise WireError(f"{SAYS}the step after {step!r} is not next")
        return kept


def _seal(private: bytes, public: bytes) -> Fernet:
    """Make what two clients seal with what they send each other."""
    key = crypto.agreed_key(private, public, "seal")
    return Fernet(base64.urlsafe_b64encode(key))
