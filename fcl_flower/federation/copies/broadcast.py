"""The server's half: every round's change of its models, rounded once for all clients.

The models of the server's state are those that clients have. What aggregation makes of
them is taken up only as far as the rounded change tells it, the rest waits for the next
change (the server's half of error feedback in both directions: Tang et al.,
DoubleSqueeze, ICML 2019). So a client that has the models of an earlier round needs
the changes since, the same bytes as all others; who has none, or older ones than the
changes that are kept, gets the models themselves, in float32.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fcl_flower.core.seeds import derive
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Arrays, Payload, Request
from fcl_flower.federation.coding.differences import (
    Known,
    added,
    checksum,
    is_matrix,
    put,
    size,
)
from fcl_flower.federation.coding.positions import pack, whole_rows
from fcl_flower.federation.coding.wire_format import WireFormat
from fcl_flower.federation.copies.rounding import Rounding
from fcl_flower.federation.transport.codec import Encoded
from fcl_flower.federation.transport.messages import MessageEncoder, Tensors
from fcl_flower.federation.transport.state_store import Saved, require_free

COPIES = "fcl.copies"
"""The record of a message that says of each model in it by group: the round after which
it is this one, and its checksum."""
RESTS = "copies/rest/"
"""What rounding has left, in a checkpoint, by group."""
CHANGE = "/+"
"""Between the name of a group and the round whose change of it a group holds."""
ROWS = "/rows"
"""After the name of a group: which rows of it the learner gets, one bit a row."""


class Broadcast:
    """Knows what each client has, and keeps changes as long as they are worth it.

    That is until they take as many bytes as the models; so this takes at most the bytes
    of the models twice, however many clients there are. A run that is resumed begins
    without changes: its clients get the models once.

    Attributes:
        wire: the run's.
    """

    def __init__(self, wire: WireFormat, seed: int) -> None:
        """Begin without clients.

        Args:
            wire: of the run.
            seed: of the run.
        """
        self.wire = wire
        self._seed = seed
        self._encoder = MessageEncoder(wire)
        self._rounding = Rounding(wire, {})
        self._version = 0
        self._first = 0
        self._changes: deque[tuple[int, Mapping[str, Mapping[str, Encoded]]]] = deque()
        self._held: dict[int, dict[str, int]] = {}
        self._checksums: dict[str, tuple[Arrays, int]] = {}

    # ---- checkpoints

    def kept(self) -> Payload:
        """Return what a checkpoint has to keep beside the server's state."""
        return self._rounding.rests(RESTS)

    def restore(self, saved: Saved) -> Saved:
        """Return a checkpoint without what `kept` added, and go on from it."""
        state, rests = dict[str, Arrays](), dict[str, Arrays]()
        for group, arrays in saved.payload.items():
            if group.startswith(RESTS):
                rests[group.removeprefix(RESTS)] = arrays
            else:
                state[group] = arrays
        self._rounding = Rounding(self.wire, rests)
        self._version = self._first = saved.round
        return Saved(saved.round, state)

    # ---- rounds

    def published(
        self, before: Payload, after: Payload, version: int, known: Mapping[int, Known]
    ) -> Payload:
        """Return the state in which models have changed as far as clients are told.

        Args:
            before: the state that clients know.
            after: what aggregation has made of it.
            version: the round.
            known: what the clients whose updates are used have in their memory now.

        Raises:
            ContractError: the state has a group of the name of what `kept` returns.
        """
        require_free(after, RESTS, "the server's state")
        self._version = version
        for client, theirs in known.items():
            held = dict.fromkeys(theirs.models, theirs.version)
            self._held[client] = self._held.get(client, {}) | held
        state, changes = dict(after), dict[str, dict[str, Encoded]]()
        for group, arrays in after.items():
            old = before.get(group)
            if self.wire.by_difference(group) and old and arrays is not old:
                state[group], changes[group] = self._changed(group, old, arrays)
        if any(map(self.wire.by_difference, after)):
            self._changes.append((version, changes))
            self._drop_changes(state)
        return state

    def forget(self, client: int) -> None:
        """Note that a client has lost its memory."""
        self._held.pop(client, None)

    # ---- messages

    def message(
        self, client: int, payload: Payload, request: Request, state: Payload
    ) -> tuple[RecordDict, Known]:
        """Return a message to a client, and what it will know then.

        Args:
            client: whom it goes to.
            payload: what the strategy sends: of the models whole ones, or as
                `SparseArray` those entries that the client lacks.
            request: what is asked of the client.
            state: the server's.
        """
        made: dict[str, Tensors] = {}
        notes, models = ConfigRecord(), dict[str, Arrays]()
        for group, arrays in payload.items():
            made[group] = arrays
            if not (self.wire.by_difference(group) and group in state):
                continue
            models[group] = state[group]
            notes[group] = [self._version, self._checksum(group, state)]
            changes = self._since(group, self._held.get(client, {}).get(group))
            rows = _rows(arrays)
            if changes is None or rows is None:
                continue
            if _bytes(changes.values()) >= size(arrays):
                continue
            made[group] = {n: t for n, t in arrays.items() if not is_matrix(t)}
            if rows:
                made[group + ROWS] = rows
            for version, tensors in changes.items():
                made[f"{group}{CHANGE}{version}"] = tensors
        records = self._encoder.encode_request(made, request)
        if notes:
            records[COPIES] = notes
        return records, Known(self._version, models)

    def close_round(self) -> None:
        """Let go of the tensors that were encoded in this round."""
        self._encoder = MessageEncoder(self.wire)

    def _changed(
        self, group: str, known: Arrays, wanted: Arrays
    ) -> tuple[Arrays, dict[str, Encoded]]:
        """Return a model moved by its rounded change, and that change.

        Rows along axis 0 that aggregation has left alone stay, with what is left of
        earlier changes: a strategy may send only those that it has changed.
        """
        moved, changes = dict(wanted), dict[str, Encoded]()
        for name, tensor in wanted.items():
            if not is_matrix(tensor):
                continue
            new, old = np.asarray(tensor), np.asarray(known[name])
            rows = np.flatnonzero((new != old).reshape(len(new), -1).any(axis=1))
            moved[name] = old
            if not len(rows):
                continue
            change = SparseArray.of_channels(new - old, rows)
            key = zlib.crc32(f"{group}/{name}".encode())
            seed = derive(self._seed, "rounding of the broadcast", self._version, key)
            made, read = self._rounding.difference(group, name, change, seed)
            moved[name], changes[name] = put(added(old, read), old), made
        return moved, changes

    def _drop_changes(self, state: Payload) -> None:
        """Forget the oldest changes while all together are no less than the models."""
        whole = sum(size(a) for g, a in state.items() if self.wire.by_difference(g))
        kept = [_bytes(groups.values()) for _, groups in self._changes]
        total = sum(kept)
        for taken in kept:
            if total < whole:
                break
            self._first, _ = self._changes.popleft()
            total -= taken

    def _since(
        self, group: str, held: int | None
    ) -> Mapping[int, Mapping[str, Encoded]] | None:
        """Return a group's changes by round, None if they are not all there."""
        if held is None or held < self._first:
            return None
        return {
            version: groups[group]
            for version, groups in self._changes
            if version > held and group in groups
        }

    def _checksum(self, group: str, state: Payload) -> int:
        """Return the checksum of a model, which is made once for all clients."""
        arrays, found = self._checksums.get(group, (None, 0))
        if arrays is not state[group]:
            found = checksum(state[group])
            self._checksums[group] = state[group], found
        return found


def notes_of(known: Known) -> ConfigRecord:
    """Return the record of a message that sends models as values."""
    return ConfigRecord(
        {g: [known.version, checksum(arrays)] for g, arrays in known.models.items()}
    )


def _rows(arrays: Arrays) -> Arrays | None:
    """Return which rows there are of each `SparseArray`, one bit a row.

    None where one has only some entries of a row.
    """
    found: dict[str, AnyArray] = {}
    for name, tensor in arrays.items():
        if isinstance(tensor, SparseArray):
            rows = whole_rows(tensor)
            if rows is None:
                return None
            found[name] = np.frombuffer(pack(".rows", tensor.shape, rows), np.uint8)
    return found


def _bytes(groups: Iterable[Mapping[str, Encoded]]) -> int:
    return sum(len(made.data) for tensors in groups for made in tensors.values())
