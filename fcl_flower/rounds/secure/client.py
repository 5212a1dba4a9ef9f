"""The client's part of a sum: keys, shares of them, a masked vector, and its unmasking.

Secrets between the messages of a round lie in the client's memory, never in a file.
They are gone after its last answer.
"""

import base64
import struct
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from cryptography.fernet import Fernet, InvalidToken

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Arrays, Update
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.secure import crypto
from fcl_flower.rounds.secure.graph import MOST_CLIENTS, mask_graph
from fcl_flower.rounds.transport import Content

Table: TypeAlias = Mapping[int, tuple[bytes, ...]]
"""A row of bytes for each client."""

RECORD = "fcl.secure"
ROUND = "fcl.secure-round"
"""The table with the number of `clients` of a sum."""
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"
"""Names of the three queries; between the second and the third lies the training."""

SUM_OF = "meta/sum"
"""The group with the `clients` that hold shares of a client's secrets, and the `layout`
of the sum."""

PRESENT, ABSENT = b"present", b"absent"
"""Whether the masked vector of a client is in the sum."""

SHARES_HEAD = struct.Struct("<QQI")
"""The head of a seed's and a key's share: sender, receiver, bytes of the first."""

MAX_CELL = 2**14
"""Bytes of the largest cell: a few times those of a private key's encrypted share."""


def to_content(table: Table, clients: int = 0) -> Content:
    """Write a table as content, with the number of the sum's clients unless it is 0."""
    columns = zip(*table.values(), strict=True)
    cells = {str(number): list(column) for number, column in enumerate(columns)}
    content = Content(scalars={RECORD: {"clients": list(table), **cells}})
    if clients:
        content.scalars[ROUND] = {"clients": clients}
    return content


def from_content(
    content: Content, columns: int, clients: Iterable[int] | None = None
) -> dict[int, tuple[bytes, ...]]:
    """Read a table from a peer, with a row for each of these clients and no other.

    Without ``clients`` the peer decides which clients have a row.

    Raises:
        WireError: the content has no such table, or a cell is too large.
    """
    table = dict(content.scalars.get(RECORD, {}))
    numbers = table.pop("clients", None)
    numbers = [*map(int, numbers)] if isinstance(numbers, list) else []
    wanted = sorted(numbers if clients is None else clients)
    if sorted(numbers) != wanted:
        raise WireError(f"{RECORD}: expected a row for each of {wanted}")
    cells = [
        [cell for cell in column if isinstance(cell, bytes) and len(cell) <= MAX_CELL]
        for number in range(columns)
        if isinstance(column := table.pop(str(number), None), list)
    ]
    if table or [len(column) for column in cells] != [len(wanted)] * columns:
        raise WireError(f"{RECORD}: expected {columns} columns of short bytes")
    return dict(zip(numbers, zip(*cells, strict=True), strict=True))


KEPT = "fcl.secure-aggregation"
SAYS = "secure aggregation: "


class ClientSide:
    """One client in one attempt at a sum.

    Each of the four calls is one message; in another order they are refused. A second
    vector under the same masks would show the difference of the two. Both shares of one
    client would show all of its masks.
    """

    def __init__(self, place: Place, section: FederationSection) -> None:
        """Go on with the secrets in the client's memory; training may replace it."""
        self._place = place
        self._before = dict(place.state.scalars.get(KEPT, {}))
        self._section = section
        self._client = place.number

    def advertise_keys(self) -> Content:
        """Begin anew; return public keys: of masks, of messages to others, of the seed.

        The key of the seed is for the server alone. It shows the server that the shares
        that it has joined were right.
        """
        private = [crypto.new_secret() for _ in range(3)]
        public = [crypto.public_key(secret) for secret in private]
        self._keep("keys", private=private, public=public[:2])
        return to_content({self._client: tuple(public)})

    def share_keys(self, content: Content) -> Content:
        """Seal shares of the key and of the seed of the masks for each other client.

        The message has the number of the sum's clients. It has the public keys of the
        clients that hold shares of this client's secrets, and its own.

        Raises:
            WireError: a key is missing, wrong or there twice, or there are too few.
        """
        secrets = self._secrets("keys")
        roster = from_content(content, 2)
        clients = _clients(content)
        graph = mask_graph(clients, self._section)
        if clients < self._section.sum_threshold(clients):
            raise WireError(
                f"{SAYS}expected at least {self._section.sum_threshold(clients)} "
                f"clients, got {clients}"
            )
        if len(roster) != graph.neighbours + 1:
            raise WireError(
                f"{SAYS}expected the keys of {graph.neighbours + 1} of {clients} "
                f"clients, got {len(roster)}"
            )
        if roster.get(self._client) != tuple(secrets["public"]):
            raise WireError(f"{SAYS}these are not the keys that were sent")
        keys = [key for row in roster.values() for key in row]
        if len({*keys}) < len(keys):
            raise WireError(f"{SAYS}two clients have one key")
        mask_key, seal_key, seed = secrets["private"]
        seals = crypto.agreed_keys(seal_key, (row[1] for row in roster.values()), SEAL)
        shares = zip(
            roster,
            seals,
            crypto.share_secret(seed, graph.threshold, len(roster)),
            crypto.share_secret(mask_key, graph.threshold, len(roster)),
            strict=True,
        )
        sealed, own = {}, [b"", b""]
        for other, seal, of_seed, of_key in shares:
            if other == self._client:
                own = [of_seed, of_key]
                continue
            head = SHARES_HEAD.pack(self._client, other, len(of_seed))
            sealed[other] = (_seal(seal).encrypt(head + of_seed + of_key),)
        self._keep(
            "shares",
            round=clients,
            clients=list(roster),
            mask_keys=[row[0] for row in roster.values()],
            seals=seals,
            own=[mask_key, seed, *own],
        )
        return to_content(sealed)

    def masked(self, update: Update, sum_of: Arrays) -> Update:
        """Mask an update for a sum (`SUM_OF`): its vector alone shows nothing.

        Raises:
            ConfigError: a value is too large for the vector.
            ContractError: the update does not fit the layout.
            WireError: there are too few clients, or unknown ones.
        """
        secrets = self._secrets("shares")
        if sum_of.keys() != {"clients", "layout"}:
            raise WireError(f"{SUM_OF}: got {sorted(sum_of)}, expected clients, layout")
        layout = crypto.Layout.from_array(sum_of["layout"])
        clients = [int(number) for number in np.asarray(sum_of["clients"])]
        keys = dict(zip(secrets["clients"], secrets["mask_keys"], strict=True))
        self._check_clients(clients, secrets)
        vector = crypto.encode_fixed_point(update, layout, secrets["round"])
        others = {c: keys[c] for c in clients if c != self._client}
        mask_key, seed = secrets["own"][:2]
        crypto.add_masks(vector, [(crypto.own_mask(seed), True)])
        crypto.add_masks(vector, crypto.pair_masks(self._client, mask_key, others))
        self._keep("masked", **{**secrets, "summed": clients})
        return Update({"masked": {"vector": vector}}, 0, update.metrics)

    def unmask(self, content: Content) -> Content:
        """Return a share of each neighbour's seed if its vector came, else of its key.

        The message says whether the vector came, and has the shares that the neighbour
        sealed for this client. The answer to shares that cannot be opened is empty.

        Raises:
            WireError: too few vectors came, or the message names other clients than
                before.
        """
        secrets = self._secrets("masked")
        del self._place.state.scalars[KEPT]
        asked = from_content(content, 2, secrets["summed"])
        present = [c for c, (state, _) in asked.items() if state == PRESENT]
        if any(state not in (PRESENT, ABSENT) for state, _ in asked.values()):
            raise WireError(f"{SAYS}a client is neither here nor absent")
        self._check_clients(present, secrets)
        seals = dict(zip(secrets["clients"], secrets["seals"], strict=True))
        revealed: dict[int, tuple[bytes, ...]] = {}
        for owner, (state, sealed) in asked.items():
            of_seed, of_key = secrets["own"][2:]
            if owner != self._client:
                of_seed, of_key = self._opened(_seal(seals[owner]), sealed, owner)
            revealed[owner] = (of_seed if state == PRESENT else of_key,)
        return to_content(revealed)

    def _opened(self, seal: Fernet, sealed: bytes, owner: int) -> tuple[bytes, bytes]:
        """Open the shares that an owner sealed for this client; empty for others."""
        try:
            plain = seal.decrypt(sealed)
            source, target, length = SHARES_HEAD.unpack_from(plain)
        except (InvalidToken, struct.error):
            return b"", b""
        if (source, target) != (owner, self._client):
            return b"", b""
        of_both = plain[SHARES_HEAD.size :]
        return of_both[:length], of_both[length:]

    def _check_clients(self, summed: list[int], secrets: Mapping[str, Any]) -> None:
        threshold = mask_graph(secrets["round"], self._section).threshold
        holders, different = {*secrets["clients"]}, {*summed}
        enough = len(different) >= max(threshold, len(summed))
        if not enough or not different <= holders:
            raise WireError(
                f"{SAYS}expected at least {threshold} of the clients {sorted(holders)}"
                f", got {sorted(summed)}"
            )
        if self._client not in summed:
            raise WireError(f"{SAYS}this client is not in the sum")

    def _keep(self, step: str, **values: Any) -> None:  # noqa: ANN401
        self._place.state.scalars[KEPT] = {"step": step, **values}

    def _secrets(self, step: str) -> dict[str, Any]:
        secrets = dict(self._before)
        if secrets.pop("step", None) != step:
            raise WireError(f"{SAYS}the step after {step!r} is not next")
        return secrets


SEAL = "seal"
"""The use of the keys that seal messages between two clients."""


def _seal(key: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(key))


def _clients(content: Content) -> int:
    clients = content.scalars.get(ROUND, {}).get("clients")
    if not isinstance(clients, int) or not 0 < clients <= MOST_CLIENTS:
        raise WireError(f"{ROUND}: expected a number of clients up to {MOST_CLIENTS}")
    return clients
