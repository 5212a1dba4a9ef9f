"""Bytes of a message are those that Flower sends; nominal ones are those of papers."""

import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fcl_flower.core.types import Assignment, SparseArray, TaskStage, Update
from fcl_flower.flower_app.records import RecordMaker
from fcl_flower.rounds import byte_counts, messages
from fcl_flower.rounds.transport import Content

RNG = np.random.default_rng(0)
STAGE = TaskStage(round=1, task=0, starts_task=True, ends_task=False)


def stored_by_flower(content):
    """Flower's own list of the objects of a message, each under its hash once."""
    records = RecordMaker().records(content)
    return sum(len(o.deflate()) for o in get_all_nested_objects(records).values())


def close(total):
    return pytest.approx(total, rel=0.01, abs=12)


def random_payload():
    dense = RNG.standard_normal((4, 5)).astype(np.float32)
    sparse = SparseArray.of_nonzero(np.where(dense > 0, dense, 0))
    return {
        "base": {"w": dense, "b": RNG.standard_normal(4)},
        "adapters/0/0": {"w": sparse},
        "adapters/3/1": {"w": SparseArray.of_mask(dense, dense > 1)},
    }


@pytest.mark.parametrize("way", ["downlink", "uplink"])
def test_all_that_flower_stores_is_counted(way):
    packer = messages.MessageEncoder()
    if way == "downlink":
        content = packer.encode_request(random_payload(), Assignment(STAGE))
    else:
        content = packer.encode_update(
            Update(random_payload(), 10, {"loss": 0.5}), STAGE
        )
    counted = byte_counts.traffic(content)
    assert counted.keys() == {"base", "adapters", "meta"}
    assert counted.total() == close(stored_by_flower(content))
    assert min(counted.values()) > 0


def test_a_kind_counts_its_tensors_with_their_headers():
    payload = random_payload()
    content = messages.MessageEncoder().encode_request(payload, Assignment(STAGE))
    counted = byte_counts.traffic(content)
    records = RecordMaker().records(content)
    for kind in ("base", "adapters"):
        arrays = [
            array
            for group, record in records.array_records.items()
            if group.split("/")[0] == kind
            for array in record.values()
        ]
        by_hand = sum(
            len(array.deflate())
            + sum(len(c.deflate()) for c in array.children.values())
            for array in arrays
        )
        assert counted[kind] == close(by_hand)
        assert by_hand > sum(len(array.data) for array in arrays)


def test_equal_tensors_travel_once_as_in_flower():
    same = np.frombuffer(RNG.bytes(40_000), np.float32)
    payload = {
        "masks/0": {"a": same, "b": same.copy(), "c": np.ones(3)},
        "masks/1": {"a": same},
        "adapters/0/0": {"a": same},
    }
    content = messages.MessageEncoder().payload(payload)
    counted = byte_counts.traffic(content)
    assert counted.total() == close(stored_by_flower(content))
    assert 40_000 < counted["masks"] < 41_000
    assert counted["adapters"] == 0
    assert 0 < counted["meta"] < 2000


def test_a_message_without_tensors_is_all_meta():
    counted = byte_counts.traffic(
        messages.MessageEncoder().encode_request({}, Assignment(STAGE))
    )
    assert counted.keys() == {"meta"}
    assert counted["meta"] > 0


WHOLE = [0, 1, -1, 63, 64, -64, -65, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]
VALUES = [
    *(True, False),
    *(*WHOLE, 2**63, 2**64 - 1),
    *(0.0, -1.5, float("inf"), 1e-300),
    *("", "x", "größe ж 水 🌊", "x" * 127, "x" * 128, "ж" * 9000),
    *(b"", b"x", bytes(127), bytes(128), bytes(20_000)),
    *([], [True], [True, False] * 100, WHOLE, [2**64 - 1, 2**63], [0] * 200),
    *([0.5], [0.5, float("-inf")] * 40, [""], ["x", "ж" * 200, ""]),
    *([b""], [b"x", bytes(300), b""]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value!r:.20}")
@pytest.mark.parametrize("name", ["k", "größe", "k" * 128], ids=len)
def test_a_table_counts_as_flower_writes_it(name, value):
    content = Content(scalars={"t": {name: value}})
    assert byte_counts.traffic(content).total() == close(stored_by_flower(content))


def test_nominal_bytes_are_four_for_each_parameter_that_is_not_zero():
    payload = {
        "base": {
            "w": np.array([[0.0, 1.0], [2.0, 0.0]]),  # 2
            "n": np.asarray(5),  # 1
            "z": np.zeros(7, np.float32),  # 0
        },
        "adapters/0/0": {
            "w": SparseArray((9,), np.array([0, 4, 8]), np.array([1.0, 0.0, 3.0]))  # 2
        },
    }
    assert byte_counts.NominalBytes().of(payload) == 4 * 5
    assert byte_counts.NominalBytes().of({}) == 0


def test_nominal_bytes_count_what_differs_from_zero_bit_by_bit_or_not():
    odd = np.array([np.nan, -0.0, 0.0, np.inf, 1e-45], np.float32)
    flags = np.array([True, False, True])
    assert byte_counts.NominalBytes().of({"base": {"w": odd, "b": flags}}) == 4 * (
        3 + 2
    )


def test_a_large_tensor_travels_in_pieces_as_in_flower():
    large = RNG.integers(1, 256, 11 * 2**20, np.uint8)
    payload = {"base": {"w": large, "same": large.copy(), "b": large[:9]}, "masks": {}}
    content = messages.MessageEncoder().payload(payload)
    counted = byte_counts.traffic(content)
    assert counted.total() == close(stored_by_flower(content))
    assert len(large) < counted["base"] < len(large) + 3000


def test_names_beyond_ascii_count_as_flower_writes_them():
    payload = {"base/größe": {'ж "w"': np.ones(3), "w": np.zeros((3, 1))}}
    content = messages.MessageEncoder().payload(payload)
    assert byte_counts.traffic(content).total() == close(stored_by_flower(content))


def test_a_group_for_many_clients_is_looked_at_once_and_counts_each_time():
    tensor, other = np.array([1.0, 0.0, 2.0]), np.array([1.0, 0.0, 0.0])
    group = {"w": tensor}
    counts = byte_counts.NominalBytes()

    found = [counts.of({"base": g}) for g in (group, {"w": other}, dict(group))]
    tensor[1] = 5

    assert found == [8, 4, 8]
    assert counts.of({"base": group, "heads": {"v": other}}) == 8 + 4
