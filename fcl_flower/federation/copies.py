"""The server's half: every round's change of its models, rounded once for all clients.

The models of the server's state are those that clients have. What aggregation makes of
them is taken up only as far as the rounded change tells it, the rest waits for the next
change (the server's half of error feedback in both directions: Tang et al.,
DoubleSqueeze, ICML 2019). So a client that has the models of an earlier round needs
the changes since, the same bytes as all others; who has none, or older ones than the
changes that are kept, gets the models themselves, in float32.


Rounding of differences, and the memory of what it has taken away.

Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019,
https://arxiv.org/abs/1901.09847, algorithm 2): what rounding takes from one difference
is added to the next, so that the sum of all that was sent is the sum of all that was
wanted, up to one rounding. Without it rounding is at random, and right on average.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fcl_flower.core.errors import WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload, Request, SparseArray
from fcl_flower.federation import messages
from fcl_flower.federation.checkpoint import Saved, require_free
from fcl_flower.federation.codec import Encoded, decode, encode, pack, whole_rows
from fcl_flower.federation.messages import MessageEncoder, Tensors
from fcl_flower.federation.wire_format import (
    Known,
    WireFormat,
    added,
    checksum,
    entries,
    is_matrix,
    put,
    size,
    values_of,
    with_values,
)

_LARGEST = 1e38
"""Hostile updates without a limit of their norm must not end a run."""


class Rounding:
    """Rounds differences of one sender."""

    def __init__(self, wire: WireFormat, rests: Payload) -> None:
        """Go on with the ``rests`` of earlier rounds."""
        self._wire = wire
        self._rests = {group: dict(arrays) for group, arrays in rests.items()}

    def rests(self, prefix: str) -> Payload:
        """Return what rounding has left so far, under the names of its groups.

        Args:
            prefix: what comes before their names.
        """
        # Copies: a store takes a group that is the object it has saved for unchanged.
        return {prefix + group: dict(a) for group, a in self._rests.items()}

    def difference(
        self, group: str, name: str, wanted: AnyArray, seed: int
    ) -> tuple[Encoded, AnyArray]:
        """Return a difference as it travels, and what the receiver reads.

        Args:
            group: of the tensor.
            name: of the tensor.
            wanted: the exact difference; entries that a `SparseArray` lacks stay.
            seed: of rounding at random, which it is without feedback.
        """
        wire = self._wire
        if not wire.feedback:
            wanted = with_values(wanted, _within_range(values_of(wanted)))
            made = encode(wanted, wire.dtype, compress=wire.compress, seed=seed)
            return made, decode(made)
        rests = self._rests.setdefault(group, {})
        rest = np.asarray(rests.get(name, np.zeros(wanted.shape, np.float32)))
        values = _within_range(values_of(wanted) + entries(rest, wanted))
        made = encode(with_values(wanted, values), wire.dtype, compress=wire.compress)
        read = decode(made)
        rests[name] = put(with_values(wanted, values - values_of(read)), rest)
        return made, read


def _within_range(values: Array) -> Array:
    """Return values of which none is so large that its scale overflows."""
    return np.nan_to_num(values, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST).clip(
        -_LARGEST, _LARGEST
    )


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


KEPT: Final = "copies/"
"""Of the groups of a private state that are not the learner's."""
_MODEL: Final = f"{KEPT}model/"
_REST: Final = f"{KEPT}rest/"
_VERSIONS: Final = f"{KEPT}versions"


class CopyError(WireError):
    """A copy is missing or is not the server's model: the client needs it whole."""


class Replica:
    """Copies of one client, from before a message and after it."""

    def __init__(
        self, wire: WireFormat, seed: int, client: int, saved: Payload
    ) -> None:
        """Take up what the client has.

        Args:
            wire: of the run.
            seed: of the run.
            client: its number.
            saved: its private state; empty if there is none.
        """
        self._wire = wire
        self._seed = seed
        self._client = client
        self._models = _below(saved, _MODEL)
        self._versions = dict(saved.get(_VERSIONS, {}))
        self._rounding = Rounding(wire, _below(saved, _REST))
        self._current: dict[str, Arrays] = {}

    @staticmethod
    def without(saved: Payload) -> Payload:
        """Return the part of a private state that is the learner's."""
        return {g: arrays for g, arrays in saved.items() if not g.startswith(KEPT)}

    def kept(self) -> Payload:
        """Return what to save beside the learner's state."""
        if not self._models:
            return {}
        return {
            _VERSIONS: self._versions,
            **{_MODEL + group: arrays for group, arrays in self._models.items()},
            **self._rounding.rests(_REST),
        }

    def received(self, records: RecordDict, max_bytes: int) -> dict[str, Arrays]:
        """Return the payload of a message, its models whole; bring copies up to date.

        Args:
            records: of the message.
            max_bytes: see `messages.decode_payload`.

        Raises:
            CopyError: a copy that changes are for is missing, or does not become the
                server's model.
            WireError: a tensor cannot be decoded.
        """
        payload = dict(messages.decode_payload(records, max_bytes))
        notes = records.config_records.get(COPIES, ConfigRecord())
        self._current = {}
        for group, note in notes.items():
            version, expected = _numbers(note)
            rows = payload.pop(group + ROWS, {})
            changes = {
                int(name.rpartition(CHANGE)[2]): payload.pop(name)
                for name in [n for n in payload if n.startswith(group + CHANGE)]
            }
            model = self._entered(group, payload[group])
            if changes:
                model = self._moved(group, model, changes)
                payload[group] = {n: _part(model[n], rows[n]) for n in rows} or model
            if checksum(model) != expected:
                raise CopyError(f"{group}: the copy is not the server's model")
            self._models[group] = self._current[group] = model
            self._versions[group] = np.asarray(version)
        return payload

    def outgoing(self, payload: Payload, number: int) -> Mapping[str, Tensors]:
        """Return an update's tensors as they travel.

        Args:
            payload: of the update.
            number: of the round, in the client's own count.
        """
        made: dict[str, Tensors] = dict(payload)
        for group in payload.keys() & self._current.keys():
            known = self._current[group]
            made[group] = {
                name: self._difference(group, name, tensor, known[name], number)
                if is_matrix(tensor) and name in known
                else tensor
                for name, tensor in payload[group].items()
            }
        return made

    def _entered(self, group: str, arrays: Arrays) -> Arrays:
        """Return a model into which what came of it as it is has been entered."""
        known = self._models.get(group, {})
        model = dict(known)
        for name, tensor in arrays.items():
            start = known.get(name)
            if start is None and isinstance(tensor, SparseArray):
                if tensor.nnz < tensor.size:
                    raise CopyError(f"{group}/{name}: there is no copy of the rest")
                start = tensor.to_dense()
            model[name] = tensor if start is None else put(tensor, start)
        return model

    def _moved(
        self, group: str, model: Arrays, changes: Mapping[int, Arrays]
    ) -> Arrays:
        """Return a model moved by its changes.

        Changes that the copy has already, since an update of the client was not used,
        are not added again.
        """
        moved, held = dict(model), int(np.asarray(self._versions.get(group, 0)))
        for version in sorted(v for v in changes if v > held):
            for name, change in changes[version].items():
                if name not in moved:
                    raise CopyError(f"{group}/{name}: there is no copy to be changed")
                moved[name] = put(added(moved[name], change), moved[name])
        return moved

    def _difference(
        self, group: str, name: str, tensor: AnyArray, known: AnyArray, number: int
    ) -> Encoded:
        """Return what an update changes in a tensor.

        Raises:
            WireError: training has diverged; no level can tell the server.
        """
        wanted = with_values(tensor, values_of(tensor) - entries(known, tensor))
        if not np.isfinite(values_of(wanted)).all():
            raise WireError(f"{group}/{name}: holds NaN or infinite values")
        key = zlib.crc32(f"{group}/{name}".encode())
        seed = derive(self._seed, "rounding", self._client, number, key)
        return self._rounding.difference(group, name, wanted, seed)[0]


def _part(tensor: AnyArray, rows: AnyArray) -> SparseArray:
    """Return rows of a dense tensor, given as one bit each."""
    dense, packed = np.asarray(tensor), np.asarray(rows, np.uint8)
    marks = np.unpackbits(packed, count=len(dense), bitorder="little")
    return SparseArray.of_channels(dense, np.flatnonzero(marks))


def _below(saved: Payload, prefix: str) -> dict[str, Arrays]:
    return {
        group.removeprefix(prefix): arrays
        for group, arrays in saved.items()
        if group.startswith(prefix)
    }


def _numbers(note: object) -> list[int]:
    if not (isinstance(note, list) and len(note) == 2):
        raise WireError(f"{COPIES}: expected two numbers, got {note!r}")
    return note
