"""The client's half: copies of the server's models, and differences to them.

A copy is brought up to date by the changes since the client's last round, and its
checksum proves that it is the server's model. What the client sends of a model is the
difference to that copy.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fcl_flower.core.errors import WireError
from fcl_flower.core.seeds import derive
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import AnyArray, Arrays, Payload
from fcl_flower.federation.coding.differences import (
    added,
    checksum,
    entries,
    is_matrix,
    put,
    values_of,
    with_values,
)
from fcl_flower.federation.coding.wire_format import WireFormat
from fcl_flower.federation.copies.broadcast import CHANGE, COPIES, ROWS
from fcl_flower.federation.copies.rounding import Rounding
from fcl_flower.federation.transport import messages
from fcl_flower.federation.transport.codec import Encoded
from fcl_flower.federation.transport.messages import Tensors

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
