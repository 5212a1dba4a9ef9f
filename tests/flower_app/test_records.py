"""What messages hold as Flower's records, and what a client keeps as they serialize."""

import numpy as np
import pytest
from fakes import exact
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    MetricRecord,
    RecordDict,
)
from flwr.common.serde import context_from_proto, context_to_proto
from grids import travelled

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import SparseArray
from fcl_flower.flower_app.records import (
    RecordMaker,
    array_record,
    content_of,
    model_of,
)
from fcl_flower.rounds import messages
from fcl_flower.rounds.checkpoint import MemoryStateStore
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.place import place_of
from fcl_flower.rounds.transport import Content

PAYLOAD = {
    "base": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.asarray(7)},
    "adapters/0/1": {"w": SparseArray((9,), np.array([1, 5]), np.array([0.5, -2.0]))},
    "größe": {'ж "w"': np.ones((3, 0, 2), np.int8)},
    "empty": {},
}
TABLES = {
    "values": {
        **{"yes": True, "no": False, "none": 0, "low": -(2**63), "high": 2**63 - 1},
        **{"real": 0.5, "text": "größe ж 水", "nothing": "", "bytes": b"\0\xff"},
        **{"truths": [True, False], "wholes": [1, -1], "reals": [0.5, -0.0]},
        **{"texts": ["", "ж"], "cells": [b"", b"x"], "empty": []},
    },
    "none": {},
}


def content():
    made = MessageEncoder().payload(PAYLOAD)
    made.scalars = {name: dict(table) for name, table in TABLES.items()}
    return made


def same(found):
    """Hold what came against what was sent, and each value's type too."""
    assert exact(messages.decode_payload(found)) == exact(PAYLOAD)
    assert found.scalars == TABLES
    for name, value in TABLES["values"].items():
        assert type(found.scalars["values"][name]) is type(value), name
    assert type(found.scalars["values"]["truths"][0]) is bool


def test_content_comes_back_from_records_and_from_those_that_have_travelled():
    records = RecordMaker().records(content())
    same(content_of(records))
    same(content_of(travelled(records)))


def test_a_tensor_in_several_contents_becomes_one_array():
    encoder, maker, shared = MessageEncoder(), RecordMaker(), np.arange(4.0)
    made = [
        maker.records(
            encoder.payload({"base": {"w": shared}, "own": {"c": np.asarray(client)}})
        )
        for client in range(3)
    ]
    assert len({id(records["base"]["w"]) for records in made}) == 1
    assert len({records["base"]["w"].object_id for records in made}) == 1
    assert len({id(records["own"]["c"]) for records in made}) == 3


def test_a_maker_never_takes_a_new_tensor_for_an_old_one():
    maker = RecordMaker()
    for value in range(200):  # the memory of the last one would be used again
        sent = MessageEncoder().payload({"g": {"x": np.full(3, value)}})
        found = messages.decode_payload(content_of(maker.records(sent)))
        assert found["g"]["x"].tolist() == [value] * 3


def test_a_peers_tables_are_read_whatever_their_kind():
    records = RecordDict(
        {"a": MetricRecord({"x": 0.5}), "b": ConfigRecord({"y": "text"})}
    )
    assert content_of(records) == Content(scalars={"a": {"x": 0.5}, "b": {"y": "text"}})


# ---- what a client keeps


def test_what_a_client_keeps_is_of_bytes_alone_and_serializes():
    """Flower writes a context by protocol buffers, which refuse a memory view."""
    records = RecordMaker().records(content())

    for record in records.array_records.values():
        for array in record.values():
            assert type(array.data) is bytes
    context = Context(1, 7, {}, records, {})
    same(content_of(context_from_proto(context_to_proto(context)).state))


def test_a_state_that_was_saved_serializes_and_comes_back():
    place = place_of(0)
    MemoryStateStore(place).save(PAYLOAD, 3, {"copies": PAYLOAD})
    context = Context(1, 7, {}, RecordMaker().records(place.state), {})

    kept = context_from_proto(context_to_proto(context))

    place.state = content_of(kept.state)
    saved = MemoryStateStore(place).load()
    assert saved.round == 3
    assert exact(saved.state) == exact(saved.beside["copies"]) == exact(PAYLOAD)
    # What came back is kept once more, as after a message that changed little.
    again = Context(1, 7, {}, RecordMaker().records(place.state), {})
    assert context_to_proto(again) == context_to_proto(kept)


# ---- what Flower's user gives and gets


def test_a_model_comes_back_as_it_was_given():
    model = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.asarray(7)}

    found = model_of(array_record(model))

    assert exact({"base": found}) == exact({"base": model})
    assert model_of(None) is None
    assert model_of(ArrayRecord()) is None


def test_a_model_of_other_arrays_than_numpys_is_refused():
    record = ArrayRecord({"w": Array("float32", (1,), "torch", bytes(4))})
    with pytest.raises(ConfigError, match=r"initial_arrays w: got 'torch', expected"):
        model_of(record)
