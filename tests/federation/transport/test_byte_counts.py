import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fcl_flower.core.types import Request, SparseArray, TaskStage, Update, group_kind
from fcl_flower.federation import byte_counts, messages
from fcl_flower.federation.codec import WireFormat

RNG = np.random.default_rng(0)
STAGE = TaskStage(round=1, task=0, starts_task=True, ends_task=False)


def stored_by_flower(records):
    """Flower's own list of the objects of a message, each under its hash once."""
    return sum(len(o.deflate()) for o in get_all_nested_objects(records).values())


def random_payload():
    dense = RNG.standard_normal((4, 5)).astype(np.float32)
    sparse = SparseArray.of_nonzero(np.where(dense > 0, dense, 0))
    return {
        "base": {"w": dense, "b": RNG.standard_normal(4)},
        "adapters/0/0": {"w": sparse},
        "adapters/3/1": {"w": SparseArray.of_mask(dense, dense > 1)},
    }


def test_a_kind_is_the_first_segment_of_a_group():
    assert group_kind("adapters/3/1") == "adapters"
    assert group_kind("base") == "base"


@pytest.mark.parametrize("way", ["downlink", "uplink"])
def test_all_that_flower_stores_is_counted(way):
    packer = messages.MessageEncoder()
    if way == "downlink":
        records = packer.encode_request(random_payload(), Request(STAGE))
    else:
        records = packer.encode_update(
            Update(random_payload(), 10, {"loss": 0.5}), STAGE
        )
    counted = byte_counts.traffic(records)
    assert counted.keys() == {"base", "adapters", "meta"}
    assert counted.total() == stored_by_flower(records)
    assert min(counted.values()) > 0


def test_a_kind_counts_its_tensors_with_their_headers():
    payload = random_payload()
    records = messages.MessageEncoder().encode_request(payload, Request(STAGE))
    counted = byte_counts.traffic(records)
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
        assert counted[kind] == by_hand
        assert by_hand > sum(len(array.data) for array in arrays)


def test_one_more_byte_of_data_costs_one_more_byte():
    sizes = []
    for count in (1000, 1001):
        values = np.ones(count, np.int8)
        records = messages.MessageEncoder().payload({"base": {"w": values}})
        sizes.append(byte_counts.traffic(records))
    assert sizes[1]["base"] - sizes[0]["base"] == 1
    assert sizes[1]["meta"] == sizes[0]["meta"]


def test_equal_tensors_travel_once_as_in_flower():
    same = np.full(1000, 2.0, np.float32)
    payload = {
        "masks/0": {"a": same, "b": same.copy(), "c": np.ones(3)},
        "masks/1": {"a": same},
        "adapters/0/0": {"a": same},
    }
    records = messages.MessageEncoder().payload(payload)
    counted = byte_counts.traffic(records)
    assert counted.total() == stored_by_flower(records)
    assert 4000 < counted["masks"] < 5000
    assert counted["adapters"] == 0
    assert 0 < counted["meta"] < 2000


def test_equal_groups_travel_once_as_in_flower():
    group = {"w": np.arange(500.0)}
    records = messages.MessageEncoder().payload({"base": group, "anchor/base": group})
    counted = byte_counts.traffic(records)
    assert counted.total() == stored_by_flower(records)
    assert 4000 < counted["base"] < 4500
    assert counted["anchor"] == 0


def test_a_message_without_tensors_is_all_meta():
    counted = byte_counts.traffic(
        messages.MessageEncoder().encode_request({}, Request(STAGE))
    )
    assert counted.keys() == {"meta"}
    assert counted["meta"] > 0


def test_half_precision_halves_the_values():
    values = {"base": {"w": RNG.standard_normal(10_000).astype(np.float32)}}
    full = byte_counts.traffic(messages.MessageEncoder().payload(values))["base"]
    half = byte_counts.traffic(
        messages.MessageEncoder(WireFormat("float16")).payload(values)
    )["base"]
    assert full - half == pytest.approx(20_000, abs=20)


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
    assert byte_counts.nominal_bytes(payload) == 4 * 5
    assert byte_counts.nominal_bytes({}) == 0


@pytest.mark.parametrize("length", [0, 1, 9, 10, 99_999, 100_000, 5 * 2**20 + 1])
def test_data_of_any_length_count_as_flower_stores_them(length):
    values = RNG.integers(1, 100, length, np.int8)
    records = messages.MessageEncoder().payload({"base": {"w": values}})
    assert byte_counts.traffic(records).total() == stored_by_flower(records)


def test_nominal_bytes_count_what_differs_from_zero_bit_by_bit_or_not():
    odd = np.array([np.nan, -0.0, 0.0, np.inf, 1e-45], np.float32)
    flags = np.array([True, False, True])
    assert byte_counts.nominal_bytes({"base": {"w": odd, "b": flags}}) == 4 * (3 + 2)


def test_equal_pieces_of_large_tensors_travel_once_as_in_flower():
    piece = RNG.integers(1, 100, 5 * 2**20, np.int8)
    tail = RNG.integers(1, 100, 1000, np.int8)
    other = RNG.integers(1, 100, 1000, np.int8)
    payload = {
        "base": {"w": np.concatenate([piece, piece, tail]), "v": tail},
        "adapters/0/0": {
            "w": np.concatenate([piece, other]),
            "flat": piece.reshape(2, -1),
            "floats": tail.view(np.float32),
        },
        "masks/0": {},
        "masks/1": {},
    }
    records = messages.MessageEncoder().payload(payload)
    counted = byte_counts.traffic(records)
    assert counted.total() == stored_by_flower(records)
    assert counted["adapters"] < 2000 < len(piece) < counted["base"] < len(piece) + 3000


def test_names_beyond_ascii_count_as_flower_writes_them():
    payload = {"base/größe": {'ж "w"': np.ones(3), "w": np.ones((3, 1))}}
    records = messages.MessageEncoder().payload(payload)
    assert byte_counts.traffic(records).total() == stored_by_flower(records)


def test_a_tensor_for_many_clients_is_looked_at_once_and_counts_each_time():
    tensor, other = np.array([1.0, 0.0, 2.0]), np.array([1.0, 0.0, 0.0])
    counts = byte_counts.NominalBytes()

    found = [counts.of({"base": {"w": t}}) for t in (tensor, other, tensor.copy())]
    tensor[1] = 5

    assert found == [8, 4, 8]
    assert counts.of({"base": {"w": tensor, "v": other}}) == 8 + 4


def test_a_tensor_that_was_counted_stays_known_as_long_as_it_may_be_asked_for():
    counts = byte_counts.NominalBytes()
    for size in range(1, 50):  # each might be made where the one before has been
        assert counts.of({"base": {"w": np.ones(size)}}) == 4 * size
