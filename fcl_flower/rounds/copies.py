"""Models that both sides know, so that only their rounded changes have to travel.

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
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Assignment,
    Payload,
    SparseArray,
)
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import (
    Encoded,
    WireFormat,
    decode,
    encode,
    is_matrix,
)
from fcl_flower.rounds.messages import MessageEncoder, Tensors
from fcl_flower.rounds.transport import Content, Value

COPIES: Final = "fcl.copies"
"""The table of a message that says of each model in it by group: the round after which
it is this one, and its checksum."""
CHANGE: Final = "/+"
"""The mark between a group's name and the round whose change a message holds."""
ENTRIES: Final = "/entries"
"""The mark after a group's name: one bit an entry that the learner gets."""
RESIDUALS: Final = "rest/"
"""The mark before a group's name in a checkpoint: the rest that rounding has left."""
_MODEL: Final = "model/"
_VERSIONS: Final = "versions"

_LARGEST = 1e38
"""Hostile updates without a limit of their norm must not end a run."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """The models of the server that a client has after a message.

    Attributes:
        version: the round after which they were these, 0 before the first.
        models: whole, by group; those that the message is about.
    """

    version: int = 0
    models: Payload = field(default_factory=dict)


NO_VERSION = ModelVersion()


def notes_of(known: ModelVersion) -> dict[str, Value]:
    """Make the table of a message that sends models as values."""
    return {g: [known.version, checksum(a)] for g, a in known.models.items()}


def checksum(arrays: Arrays) -> int:
    """Compute what tells two versions of a group's matrices apart: their CRC-32."""
    found = 0
    for name in sorted(arrays):
        if is_matrix(arrays[name]):
            found = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), found)
    return found


# ---- differences


def restored(payload: Payload, known: Payload) -> Payload:
    """Add the differences in an update to what they are of."""
    found: dict[str, Arrays] = dict(payload)
    for group in payload.keys() & known.keys():
        arrays = dict(payload[group])
        for name, tensor in arrays.items():
            start = known[group].get(name)
            if start is None or not is_matrix(tensor):
                continue
            if tensor.shape != start.shape:
                raise WireError(
                    f"{group}/{name}: a difference of shape {tensor.shape}, expected "
                    f"{start.shape}"
                )
            arrays[name] = _added(start, tensor)
        found[group] = arrays
    return found


def _added(start: AnyArray, difference: AnyArray) -> AnyArray:
    # Both sides of the wire call this, so that they get the same bits.
    with np.errstate(over="ignore", invalid="ignore"):  # refused where it matters
        values = _entries(start, difference) + _values_of(difference)
    return _with_values(difference, values)


def _entries(tensor: AnyArray, where: AnyArray) -> Array:
    flat = np.asarray(tensor).reshape(-1)
    return flat[where.indices] if isinstance(where, SparseArray) else flat


def _values_of(tensor: AnyArray) -> Array:
    return tensor.values if isinstance(tensor, SparseArray) else tensor.reshape(-1)


def _with_values(tensor: AnyArray, values: Array) -> AnyArray:
    if isinstance(tensor, SparseArray):
        return replace(tensor, values=values)
    return values.reshape(tensor.shape)


def _put(tensor: AnyArray, known: AnyArray) -> Array:
    if isinstance(tensor, SparseArray):
        return tensor.overwrite(np.asarray(known))
    return tensor


def _matrix_bytes(arrays: Arrays) -> int:
    return sum(_values_of(t).nbytes for t in arrays.values() if is_matrix(t))


def _encoded_bytes(groups: Iterable[Mapping[str, Encoded]]) -> int:
    return sum(len(made.data) for tensors in groups for made in tensors.values())


class ErrorFeedback:
    """Rounds the differences of one sender, and remembers what that takes away.

    Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019,
    https://arxiv.org/abs/1901.09847, algorithm 2): what rounding takes from one
    difference is added to the next, so that the sum of all that was sent is the sum of
    all that was wanted, up to one rounding. Without it rounding is at random, and right
    on average.
    """

    def __init__(self, wire: WireFormat, beside: Payload) -> None:
        """Go on with what is left of earlier rounds, as `kept` has returned it."""
        self._wire = wire
        residuals = _below(beside, RESIDUALS)
        self._residuals = {group: dict(arrays) for group, arrays in residuals.items()}

    def kept(self) -> Payload:
        """Collect what rounding has left so far, for a checkpoint."""
        # Copies: a store takes a group that is the object it has saved for unchanged.
        return {RESIDUALS + group: dict(a) for group, a in self._residuals.items()}

    def difference(
        self, group: str, name: str, wanted: AnyArray, seed: int
    ) -> tuple[Encoded, AnyArray]:
        """Round a difference: to how it travels, and to what the receiver reads.

        Entries that a `SparseArray` lacks stay. ``seed`` is of rounding at random,
        which it is without feedback.
        """
        wire = self._wire
        if not wire.feedback:
            wanted = _with_values(wanted, _within_range(_values_of(wanted)))
            made = encode(wanted, wire.dtype, seed=seed)
            return made, decode(made)
        residuals = self._residuals.setdefault(group, {})
        rest = np.asarray(residuals.get(name, np.zeros(wanted.shape, np.float32)))
        values = _within_range(_values_of(wanted) + _entries(rest, wanted))
        made = encode(_with_values(wanted, values), wire.dtype)
        read = decode(made)
        residuals[name] = _put(_with_values(wanted, values - _values_of(read)), rest)
        return made, read


def _within_range(values: Array) -> Array:
    return np.nan_to_num(values, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST).clip(
        -_LARGEST, _LARGEST
    )


# ---- the server's half


class ModelPublisher:
    """Knows what each client has, and keeps changes as long as they are worth it.

    That is until they take as many bytes as the models; so this takes at most the bytes
    of the models twice, however many clients there are. A run that is resumed begins
    without changes: its clients get the models once.
    """

    def __init__(self, wire: WireFormat, seed: int) -> None:
        """Begin without clients, by the wire format and the seed of a run."""
        self.wire = wire
        self._seed = seed
        self._encoder = MessageEncoder(wire)
        self._feedback = ErrorFeedback(wire, {})
        self._version = 0
        self._first = 0
        self._changes: deque[tuple[int, Mapping[str, Mapping[str, Encoded]]]] = deque()
        self._held: dict[int, dict[str, int]] = {}
        self._checksums: dict[str, tuple[Arrays, int]] = {}

    def kept(self) -> Payload:
        """Collect what a checkpoint has to keep beside the state of the server."""
        return self._feedback.kept()

    def restore(self, version: int, beside: Payload) -> None:
        """Go on after a round, with what was `kept` of it."""
        self._feedback = ErrorFeedback(self.wire, beside)
        self._version = self._first = version

    def publish(
        self,
        before: Payload,
        after: Payload,
        version: int,
        known: Mapping[int, ModelVersion],
    ) -> Payload:
        """Change the models as far as clients are told; return the state with them.

        Clients know ``before``, of which aggregation has made ``after`` in the round
        ``version``; ``known`` is what those whose updates are used have now.
        """
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

    def message(
        self, client: int, payload: Payload, assignment: Assignment, state: Payload
    ) -> tuple[Content, ModelVersion]:
        """Make a message to a client, and say what it will know then.

        The payload has of the models whole ones, or as `SparseArray` those entries that
        the client lacks; ``state`` is the server's.
        """
        made: dict[str, Tensors] = {}
        notes, models = dict[str, Value](), dict[str, Arrays]()
        for group, arrays in payload.items():
            made[group] = arrays
            if not (self.wire.by_difference(group) and group in state):
                continue
            models[group] = state[group]
            notes[group] = [self._version, self._checksum(group, state)]
            changes = self._since(group, self._held.get(client, {}).get(group))
            if changes is None:
                continue
            if _encoded_bytes(changes.values()) >= _matrix_bytes(arrays):
                continue
            made[group] = {n: t for n, t in arrays.items() if not is_matrix(t)}
            sparse = {n: t for n, t in arrays.items() if isinstance(t, SparseArray)}
            if sparse:
                made[group + ENTRIES] = {n: t.bitmap() for n, t in sparse.items()}
            for version, tensors in changes.items():
                made[f"{group}{CHANGE}{version}"] = tensors
        content = self._encoder.encode_request(made, assignment)
        if notes:
            content.scalars[COPIES] = notes
        return content, ModelVersion(self._version, models)

    def close_round(self) -> None:
        """Let go of the tensors that were encoded in this round."""
        self._encoder = MessageEncoder(self.wire)

    def _changed(
        self, group: str, known: Arrays, wanted: Arrays
    ) -> tuple[Arrays, dict[str, Encoded]]:
        # Rows along axis 0 that aggregation has left alone stay, with what is left of
        # earlier changes: a strategy may send only those that it has changed.
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
            made, read = self._feedback.difference(group, name, change, seed)
            moved[name], changes[name] = _put(_added(old, read), old), made
        return moved, changes

    def _drop_changes(self, state: Payload) -> None:
        models = [a for group, a in state.items() if self.wire.by_difference(group)]
        whole = sum(map(_matrix_bytes, models))
        kept = [_encoded_bytes(groups.values()) for _, groups in self._changes]
        total = sum(kept)
        for taken in kept:
            if total < whole:
                break
            self._first, _ = self._changes.popleft()
            total -= taken

    def _since(
        self, group: str, held: int | None
    ) -> Mapping[int, Mapping[str, Encoded]] | None:
        if held is None or held < self._first:
            return None
        return {
            version: groups[group]
            for version, groups in self._changes
            if version > held and group in groups
        }

    def _checksum(self, group: str, state: Payload) -> int:
        # Made once for all clients.
        arrays, found = self._checksums.get(group, (None, 0))
        if arrays is not state[group]:
            found = checksum(state[group])
            self._checksums[group] = state[group], found
        return found


# ---- a client's half


class CopyError(WireError):
    """A copy is missing or is not the server's model: the client needs it whole."""


class ModelCopy:
    """A client's copies of the server's models, from before a message and after it."""

    def __init__(
        self, wire: WireFormat, seed: int, client: int, beside: Payload
    ) -> None:
        """Take up what was `kept` beside the private state of a client."""
        self._wire = wire
        self._seed = seed
        self._client = client
        self._models = _below(beside, _MODEL)
        self._versions = dict(beside.get(_VERSIONS, {}))
        self._feedback = ErrorFeedback(wire, beside)
        self._current: dict[str, Arrays] = {}

    def kept(self) -> Payload:
        """Collect what to save beside the state of the learner."""
        if not self._models:
            return {}
        return {
            _VERSIONS: self._versions,
            **{_MODEL + group: arrays for group, arrays in self._models.items()},
            **self._feedback.kept(),
        }

    def receive(self, content: Content, max_bytes: int) -> dict[str, Arrays]:
        """Read the payload of a message, its models whole; bring copies up to date.

        Raises:
            CopyError: a copy that changes are for is missing, or does not become the
                server's model.
        """
        payload = dict(messages.decode_payload(content, max_bytes))
        notes = content.scalars.get(COPIES, {})
        self._current = {}
        for group, note in notes.items():
            version, expected = _numbers(note)
            entries = payload.pop(group + ENTRIES, {})
            changes = {
                int(name.rpartition(CHANGE)[2]): payload.pop(name)
                for name in [n for n in payload if n.startswith(group + CHANGE)]
            }
            model = self._entered(group, payload[group])
            if changes:
                model = self._moved(group, model, changes)
                parts = {n: _part(model[n], bits) for n, bits in entries.items()}
                payload[group] = parts or model
            if checksum(model) != expected:
                raise CopyError(f"{group}: the copy is not the server's model")
            self._models[group] = self._current[group] = model
            self._versions[group] = np.asarray(version)
        return payload

    def send(self, payload: Payload, number: int) -> Mapping[str, Tensors]:
        """Turn the models of an update into rounded differences to the copies."""
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
        known = self._models.get(group, {})
        model = dict(known)
        for name, tensor in arrays.items():
            start = known.get(name)
            if start is None and isinstance(tensor, SparseArray):
                if tensor.nnz < tensor.size:
                    raise CopyError(f"{group}/{name}: there is no copy of the rest")
                start = tensor.to_dense()
            model[name] = tensor if start is None else _put(tensor, start)
        return model

    def _moved(
        self, group: str, model: Arrays, changes: Mapping[int, Arrays]
    ) -> Arrays:
        # Changes that the copy has already, since an update of the client was not used,
        # are not added again.
        moved, held = dict(model), int(np.asarray(self._versions.get(group, 0)))
        for version in sorted(v for v in changes if v > held):
            for name, change in changes[version].items():
                if name not in moved:
                    raise CopyError(f"{group}/{name}: there is no copy to be changed")
                moved[name] = _put(_added(moved[name], change), moved[name])
        return moved

    def _difference(
        self, group: str, name: str, tensor: AnyArray, known: AnyArray, number: int
    ) -> Encoded:
        wanted = _with_values(tensor, _values_of(tensor) - _entries(known, tensor))
        if not np.isfinite(_values_of(wanted)).all():
            raise WireError(f"{group}/{name}: holds NaN or infinite values")
        key = zlib.crc32(f"{group}/{name}".encode())
        seed = derive(self._seed, "rounding", self._client, number, key)
        return self._feedback.difference(group, name, wanted, seed)[0]


def _part(tensor: AnyArray, bits: AnyArray) -> SparseArray:
    dense, packed = np.asarray(tensor), np.asarray(bits, np.uint8)
    present = np.unpackbits(packed, count=dense.size, bitorder="little")
    return SparseArray.of_mask(dense, present.view(np.bool_))


def _below(groups: Payload, prefix: str) -> dict[str, Arrays]:
    return {
        group.removeprefix(prefix): arrays
        for group, arrays in groups.items()
        if group.startswith(prefix)
    }


def _numbers(note: object) -> list[int]:
    found = note if isinstance(note, list) else []
    numbers = [number for number in found if type(number) is int]
    if len(numbers) != 2 or len(found) != 2:
        raise WireError(f"{COPIES}: expected two numbers, got {note!r:.100}")
    return numbers
