"""Turn a message's content into Flower's records and back, and a model into arrays."""

from typing import Final, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Arrays
from fcl_flower.rounds.codec import Encoded
from fcl_flower.rounds.prepare import INITIAL
from fcl_flower.rounds.transport import Content, Value

NUMPY: Final = "numpy.ndarray"


class RecordMaker:
    """Makes records of contents; a tensor in several of them becomes one Array.

    Flower stores an object by its content, and hashes an Array once: a tensor for all
    clients is uploaded once. Keep a maker for messages that are sent together.
    """

    def __init__(self) -> None:
        """Begin without records."""
        self._made: dict[int, tuple[Encoded, Array]] = {}

    def records(self, content: Content) -> RecordDict:
        """Make the records of a message."""
        records = RecordDict()
        for group, tensors in content.tensors.items():
            records[group] = record = ArrayRecord()  # the constructor copies
            for name, tensor in tensors.items():
                record[name] = self._array(tensor)
        for name, table in content.scalars.items():
            records[name] = ConfigRecord(dict(table))
        return records

    def _array(self, tensor: Encoded) -> Array:
        if id(tensor) not in self._made:
            data = bytes(tensor.data)
            array = Array(tensor.dtype, tensor.shape, tensor.form, data)
            self._made[id(tensor)] = tensor, array
        return self._made[id(tensor)][1]


def content_of(records: RecordDict) -> Content:
    """Read the content of records; records of a peer may raise any error."""
    content = Content()
    for group, record in records.array_records.items():
        content.tensors[group] = {
            name: Encoded(array.dtype, tuple(array.shape), array.stype, _data(array))
            for name, array in record.items()
        }
    tables = (records.config_records, records.metric_records)
    for name, table in ((n, t) for kind in tables for n, t in kind.items()):
        content.scalars[name] = cast(dict[str, Value], dict(table))
    return content


def _data(array: Array) -> bytes:
    # A speed-up may leave tensors on the disk until they are looked at.
    read = getattr(array.data, "read", None)
    return cast(bytes, read()) if read else bytes(array.data)


# ---- models of Flower's users


def model_of(record: ArrayRecord | None) -> Arrays | None:
    """Read a user's model of NumPy arrays; None where there is none."""
    if not record:
        return None
    for name, array in record.items():
        if array.stype != NUMPY:
            raise config_error(f"{INITIAL} {name}", array.stype, NUMPY)
    return {name: array.numpy() for name, array in record.items()}


def array_record(model: Arrays) -> ArrayRecord:
    """Convert a model to Flower's NumPy arrays."""
    return ArrayRecord({name: Array(np.asarray(t)) for name, t in model.items()})
