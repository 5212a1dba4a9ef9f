"""Models that both sides have, so that only their rounded changes travel.

Clients have the models of the server's state. Aggregation moves these only by the
rounded change, and the rest waits for the next change. That is the server's half of
error feedback in both directions (Tang et al., DoubleSqueeze, ICML 2019). So a client
with the models of an earlier round needs the changes since then, the same bytes as all
others. A client without models, or with models older than the kept changes, gets the
models themselves in float32.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

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
from fcl_flower.rounds.codec import Encoded, WireFormat, decode, encode, is_matrix
from fcl_flower.rounds.messages import MessageEncoder, Tensor, Tensors
from fcl_flower.rounds.transport import Content, Value

COPIES: Final = "fcl.copies"
"""The table of a message with two numbers for each of its models, by group: the round
after which it is this model, and its checksum."""
CHANGE: Final = "/+"
"""The mark between a group's name and the round whose change a message holds."""
ENTRIES: Final = "/entries"
"""The mark after a group's name: one bit for each entry, set if the learner gets it."""
RESIDUALS: Final = "rest/"
"""The mark before a group's name in a checkpoint: what rounding has left."""
_MODEL: Final = "model/"
_VERSIONS: Final = "versions"

_LARGEST: Final = 1e38
"""The largest value: hostile updates without a limit of their norm end no run."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """The models of the server that a client has after a message.

    Attributes:
        version: the round after which the server had these models; 0 before the first.
        models: the whole models of the message, by group.
    """

    version: int = 0
    models: Payload = field(default_factory=dict)


NO_VERSION = ModelVersion()


def notes_of(version: ModelVersion) -> dict[str, Value]:
    """Make the table `COPIES` of a message."""
    return {g: [version.version, checksum(a)] for g, a in version.models.items()}


def checksum(arrays: Arrays) -> int:
    """Compute the CRC-32 of a group's matrices."""
    crc = 0
    for name in sorted(arrays):
        if is_matrix(arrays[name]):
            crc = zlib.crc32(np.ascontiguousarray(arrays[name]).data, crc)
    return crc


# ---- differences


def restored(payload: Payload, models: Payload) -> Payload:
    """Add the differences in an update to the models that the client knew."""
    whole: dict[str, Arrays] = dict(payload)
    for group in payload.keys() & models.keys():
        whole[group] = arrays = dict(payload[group])
        for name, tensor in arrays.items():
            start = models[group].get(name)
            if start is None or not is_matrix(tensor):
                continue
            if tensor.shape != start.shape:
                raise WireError(
                    f"{group}/{name}: a difference of shape {tensor.shape}, expected "
                    f"{start.shape}"
                )
            arrays[name] = _plus(tensor, start)
    return whole


def _plus(tensor: AnyArray, dense: AnyArray) -> AnyArray:
    """Add to each entry of a tensor the same entry of a dense one."""
    # Both sides of the wire call this, so that both get the same bits.
    entries = np.asarray(dense).reshape(-1)
    if isinstance(tensor, SparseArray):
        entries = entries[tensor.indices]
    with np.errstate(over="ignore", invalid="ignore"):  # refused where it matters
        return _with_values(tensor, _values_of(tensor) + entries)


def _put(tensor: AnyArray, dense: AnyArray) -> Array:
    if isinstance(tensor, SparseArray):
        return tensor.overwrite(np.asarray(dense))
    return tensor


def _values_of(tensor: AnyArray) -> Array:
    return tensor.values if isinstance(tensor, SparseArray) else tensor.reshape(-1)


def _with_values(tensor: AnyArray, values: Array) -> AnyArray:
    if isinstance(tensor, SparseArray):
        return replace(tensor, values=values)
    return values.reshape(tensor.shape)


class ErrorFeedback:
    """Rounds the differences of one sender, and keeps what rounding leaves.

    Error feedback (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019,
    https://arxiv.org/abs/1901.09847, algorithm 2) adds what rounding leaves of one
    difference to the next. So the sum of all rounded differences is the sum of all
    differences, up to one rounding. Without feedback rounding is at random, and right
    on average.
    """

    def __init__(self, wire: WireFormat, beside: Payload) -> None:
        """Go on with the groups that `kept` has returned."""
        self._wire = wire
        self._rests = {g: dict(a) for g, a in _below(beside, RESIDUALS).items()}

    def kept(self) -> Payload:
        """Collect what rounding has left so far, for a checkpoint."""
        # Copies, as a store takes a group for unchanged if it is the saved object.
        return {RESIDUALS + group: dict(a) for group, a in self._rests.items()}

    def difference(
        self, group: str, name: str, wanted: AnyArray, draw: Callable[[int], int]
    ) -> tuple[Encoded, AnyArray]:
        """Round a difference; return its encoded form, and what the receiver reads.

        Entries that a `SparseArray` lacks stay. ``draw`` makes the seed of rounding at
        random, without feedback, from a number of the tensor.
        """
        rests, seed = dict[str, AnyArray](), None
        if self._wire.feedback:
            rests = self._rests.setdefault(group, {})
        else:
            seed = draw(zlib.crc32(f"{group}/{name}".encode()))
        rest = rests.get(name, np.zeros(wanted.shape, np.float32))
        values = np.nan_to_num(_values_of(_plus(wanted, rest)))
        values = values.clip(-_LARGEST, _LARGEST)
        encoded = encode(_with_values(wanted, values), self._wire.dtype, seed=seed)
        read = decode(encoded)
        rests[name] = _put(_with_values(wanted, values - _values_of(read)), rest)
        return encoded, read


# ---- the server's half


class ModelPublisher:
    """Knows the model version of each client, and keeps the latest changes.

    All changes together are fewer bytes than the models, so that the memory does not
    grow with the number of clients. A resumed run begins without changes: its clients
    get the models once.
    """

    def __init__(self, wire: WireFormat, seed: int) -> None:
        """Begin without clients, with the wire format and the seed of a run."""
        self.wire = wire
        self._seed = seed
        self._encoder = MessageEncoder(wire)
        self._feedback = ErrorFeedback(wire, {})
        self._version = self._first = 0
        self._changes: dict[int, dict[str, dict[str, Encoded]]] = {}
        self._held: dict[int, dict[str, int]] = {}

    def kept(self) -> Payload:
        """Collect the groups that a checkpoint has beside the state of the server."""
        return self._feedback.kept()

    def restore(self, version: int, beside: Payload) -> None:
        """Go on after a round, with the groups that were `kept` then."""
        self._feedback = ErrorFeedback(self.wire, beside)
        self._version = self._first = version

    def publish(
        self,
        before: Payload,
        after: Payload,
        version: int,
        known: Mapping[int, ModelVersion],
    ) -> Payload:
        """Move the models by the rounded changes; return the state with them.

        Args:
            before: the state whose models the clients know.
            after: the state that aggregation has made of it.
            version: the round.
            known: the models of each client whose update is used.
        """
        self._version = version
        for client, model in known.items():
            versions = dict.fromkeys(model.models, model.version)
            self._held[client] = self._held.get(client, {}) | versions
        state, changes = dict(after), dict[str, dict[str, Encoded]]()
        models = [group for group in after if self.wire.by_difference(group)]
        for group in models:
            old = before.get(group)
            if old and after[group] is not old:
                state[group], changes[group] = self._moved(group, old, after[group])
        if models:
            self._changes[version] = changes
        kept, whole = self._changes, sum(_matrix_bytes(state[g]) for g in models)
        while kept and sum(map(_encoded_bytes, kept.values())) >= whole:
            self._first = next(iter(kept))
            del kept[self._first]
        return state

    def _moved(
        self, group: str, model: Arrays, wanted: Arrays
    ) -> tuple[Arrays, dict[str, Encoded]]:
        # Rows along axis 0 that aggregation has not changed stay, and so does what
        # rounding has left of them: a strategy may send changed rows only.
        moved, changes = dict(wanted), dict[str, Encoded]()
        draw = partial(derive, self._seed, "rounding of the broadcast", self._version)
        for name, tensor in wanted.items():
            if not is_matrix(tensor):
                continue
            new, old = np.asarray(tensor), np.asarray(model[name])
            rows = np.flatnonzero((new != old).reshape(len(new), -1).any(axis=1))
            moved[name] = old
            if len(rows):
                change = SparseArray.of_channels(new - old, rows)
                made = self._feedback.difference(group, name, change, draw)
                changes[name], read = made
                moved[name] = _put(_plus(read, old), old)
        return moved, changes

    def forget(self, client: int) -> None:
        """Note that a client has lost its copies."""
        self._held.pop(client, None)

    def message(
        self, client: int, payload: Payload, assignment: Assignment, state: Payload
    ) -> tuple[Content, ModelVersion]:
        """Make a message to a client; return it with the models that the client gets.

        The payload has whole models, or the entries that the client lacks as
        `SparseArray`; ``state`` is the server's.
        """
        sent: dict[str, Tensors] = dict(payload)
        models = {
            group: state[group]
            for group in payload
            if self.wire.by_difference(group) and group in state
        }
        for group in models:
            arrays = payload[group]
            held = self._held.get(client, {}).get(group, -1)
            changes = {
                version: groups[group]
                for version, groups in self._changes.items()
                if version > held and group in groups
            }
            if held < self._first or _encoded_bytes(changes) >= _matrix_bytes(arrays):
                continue
            sent[group] = {n: t for n, t in arrays.items() if not is_matrix(t)}
            sparse = {n: t for n, t in arrays.items() if isinstance(t, SparseArray)}
            if sparse:
                sent[group + ENTRIES] = {n: t.bitmap() for n, t in sparse.items()}
            for version, tensors in changes.items():
                sent[f"{group}{CHANGE}{version}"] = tensors
        content = self._encoder.encode_request(sent, assignment)
        known = ModelVersion(self._version, models)
        if models:
            content.scalars[COPIES] = notes_of(known)
        return content, known

    def close_round(self) -> None:
        """Drop the encoded tensors of this round."""
        self._encoder = MessageEncoder(self.wire)


def _matrix_bytes(arrays: Arrays) -> int:
    return sum(_values_of(t).nbytes for t in arrays.values() if is_matrix(t))


def _encoded_bytes(groups: Mapping[Any, Mapping[str, Encoded]]) -> int:
    return sum(len(made.data) for group in groups.values() for made in group.values())


# ---- a client's half


class CopyError(WireError):
    """A copy is missing or is not the server's model: the client needs it whole."""


class ModelCopy:
    """A client's copies of the server's models, before and after a message."""

    def __init__(
        self, wire: WireFormat, seed: int, client: int, beside: Payload
    ) -> None:
        """Take up the groups that were `kept` beside a client's private state."""
        self._seed, self._client = seed, client
        self._models = _below(beside, _MODEL)
        self._versions = dict(beside.get(_VERSIONS, {}))
        self._feedback = ErrorFeedback(wire, beside)
        self._current: dict[str, Arrays] = {}

    def kept(self) -> Payload:
        """Collect the groups to save beside the state of the learner."""
        if not self._models:
            return {}
        models = {_MODEL + group: arrays for group, arrays in self._models.items()}
        return {_VERSIONS: self._versions, **models, **self._feedback.kept()}

    def receive(self, content: Content, max_bytes: int) -> dict[str, Arrays]:
        """Read the payload of a message with whole models; bring copies up to date.

        Raises:
            CopyError: the copy of a changed model is missing, or does not become the
                server's model.
        """
        payload = dict(messages.decode_payload(content, max_bytes))
        self._current = {}
        for group, note in content.scalars.get(COPIES, {}).items():
            match note:
                case [int() as version, int() as expected]:
                    pass
                case _:
                    raise WireError(f"{COPIES}: expected two numbers, got {note!r:.60}")
            entries = payload.pop(group + ENTRIES, {})
            changes = {
                int(name.removeprefix(group + CHANGE)): payload.pop(name)
                for name in [n for n in payload if n.startswith(group + CHANGE)]
            }
            model = self._updated(group, payload[group], changes)
            if checksum(model) != expected:
                raise CopyError(f"{group}: the copy is not the server's model")
            if not any(map(is_matrix, payload[group].values())):  # they were left out
                parts = {n: _part(model[n], bits) for n, bits in entries.items()}
                payload[group] = parts or model
            self._models[group] = self._current[group] = model
            self._versions[group] = np.asarray(version)
        return payload

    def _updated(
        self, group: str, arrays: Arrays, changes: Mapping[int, Arrays]
    ) -> Arrays:
        model = dict(self._models.get(group, {}))
        for name, tensor in arrays.items():
            if name not in model and isinstance(tensor, SparseArray):
                if tensor.nnz < tensor.size:
                    raise CopyError(f"{group}/{name}: there is no copy of the rest")
                tensor = tensor.to_dense()
            model[name] = _put(tensor, model.get(name, tensor))
        # The copy has some changes already if the client's last update was not used.
        held = int(np.asarray(self._versions.get(group, 0)))
        for version in sorted(v for v in changes if v > held):
            for name, change in changes[version].items():
                if name not in model:
                    raise CopyError(f"{group}/{name}: there is no copy to be changed")
                model[name] = _put(_plus(change, model[name]), model[name])
        return model

    def send(self, payload: Payload, number: int) -> Mapping[str, Tensors]:
        """Turn the models of an update into rounded differences to the copies."""
        sent: dict[str, Tensors] = dict(payload)
        draw = partial(derive, self._seed, "rounding", self._client, number)
        for group in payload.keys() & self._current.keys():
            tensors: dict[str, Tensor] = dict(payload[group])
            for name, start in self._current[group].items():
                tensor = payload[group].get(name)
                if tensor is None or not is_matrix(tensor):
                    continue
                wanted = _plus(tensor, -np.asarray(start))
                if not np.isfinite(_values_of(wanted)).all():
                    raise WireError(f"{group}/{name}: holds NaN or infinite values")
                made = self._feedback.difference(group, name, wanted, draw)
                tensors[name], _ = made
            sent[group] = tensors
        return sent


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
