"""A short message that names its chunks again and again is not put together."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.superlink.grid import HttpGrid, http_grid
from memory import peak_of

from fcl_flower.deploy.speedups import streaming
from fcl_flower.deploy.speedups.streaming import assembled
from fcl_flower.flower_app.records import content_of

KB = 2**10
CHUNK = np.random.default_rng(0).bytes(64 * KB)


class Repeating(Array):
    """An Array that says how often its one chunk is to be joined."""

    times = 1

    def deflate(self):
        super().deflate()
        about = {"dtype": self.dtype, "shape": self.shape, "stype": self.stype}
        body = json.dumps({**about, "arraychunk_ids": [0] * self.times}).encode()
        self.__class__ = Array  # whose name stands in the head
        content = add_header_to_object_body(body, self)
        self.__class__ = Repeating
        return content


def array(times, number=0):
    """Return one of many that differ, as equal ones are sent and joined once."""
    made = Repeating("uint8", (number,), "fcl.dense", CHUNK)
    made.__dict__["times"] = times
    return made


def message_of(*arrays):
    record = ArrayRecord()
    for number, one in enumerate(arrays):
        record[f"w{number}"] = one
    content = RecordDict({"base": record})
    return Message(content, dst_node_id=1, message_type="train")


def contents_of(message):
    """Return the parts of a message, as they are stored: by what they hash to."""
    objects = get_all_nested_objects(message)
    found = {name: one.deflate() for name, one in objects.items()}
    assert all(get_object_id(content) == name for name, content in found.items())
    return found


def whole(*given):
    """Return a message that was sent in parts, with its tensors."""
    found = assembled(*given)
    streaming.join(found.content)
    return found


def test_an_honest_message_is_what_it_was():
    values = np.arange(5.0)
    constant = Array("uint8", (3 * 2**20,), "fcl.dense", bytes(3 * 2**20))
    sent = message_of(Array(values), constant)
    contents = contents_of(sent)

    found = whole(sent.object_id, contents)

    record = found.content["base"]
    np.testing.assert_array_equal(record["w0"].numpy(), values)
    assert record["w1"].data == constant.data


@pytest.mark.parametrize("times", [1, 3, 60])
def test_chunks_may_repeat_as_in_constant_tensors(times):
    sent = message_of(array(times))

    found = whole(sent.object_id, contents_of(sent))

    assert found.content["base"]["w0"].data == CHUNK * times


@pytest.mark.parametrize(
    ("arrays", "least"), [([100_000], 6e9), ([60] * 100, 3e8), ([70], 4e6)]
)
def test_a_message_that_claims_much_is_refused_before_it_is_joined(arrays, least):
    sent = message_of(*(array(times, n) for n, times in enumerate(arrays)))
    contents = contents_of(sent)
    size = sum(map(len, contents.values()))
    assert size < 600 * KB

    def refused():
        with pytest.raises(ValueError, match="a message of") as caught:
            assembled(sent.object_id, contents)
        claimed = int(str(caught.value).rpartition(" ")[2])
        assert claimed > least

    assert peak_of(refused) < 8


def test_a_tensor_with_many_names_is_in_memory_once():
    record, one = ArrayRecord(), array(20)
    for number in range(200):
        record[f"w{number}"] = one
    sent = RecordDict({"base": record})
    found = assembled(sent.object_id, contents_of(sent))

    def opened():
        tensors = content_of(found).tensors["base"]
        assert tensors["w0"].data == tensors["w199"].data == CHUNK * 20

    assert peak_of(opened) < 6  # it has 1.25 MB, and the oracle as many


def test_what_is_joined_is_bounded_whatever_was_sent(monkeypatch):
    sent = message_of(array(20))
    monkeypatch.setattr(streaming, "MOST_BYTES", 19 * len(CHUNK))

    with pytest.raises(ValueError, match=f"at most {19 * len(CHUNK)} bytes"):
        assembled(sent.object_id, contents_of(sent))


class SuperLink:
    """What Flower's connection asks: it has one message, of a client."""

    def __init__(self, message):
        self._message = message
        self._contents = contents_of(message)

    def PullMessages(self, request):  # noqa: N802
        proto = message_to_proto(self._message)
        proto.metadata.message_id = self._message.object_id
        trees = [get_object_tree(self._message)]
        return PullAppMessagesResponse(
            messages_list=[proto], message_object_trees=trees
        )

    def PullObject(self, request):  # noqa: N802
        content = self._contents[request.object_id]
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        return ConfirmMessageReceivedResponse()


def pulled(message, monkeypatch):
    """Return what a grid over a network has of a message that a client sent."""
    monkeypatch.setattr(HttpGrid, "_runtime_client", SuperLink(message))
    grid = HttpGrid(token="x")
    streaming.take_up()  # bounds it
    grid._run = SimpleNamespace(run_id=1)
    return grid.pull_messages(["1"])


def test_flowers_connection_joins_by_this_rule(monkeypatch):
    honest, hostile = message_of(array(2)), message_of(array(100_000))

    (found,) = pulled(honest, monkeypatch)
    streaming.join(found.content)
    assert found.content["base"]["w0"].data == CHUNK * 2

    def refused():
        with pytest.raises(ValueError, match="expected tensors of at most"):
            pulled(hostile, monkeypatch)

    assert peak_of(refused) < 8


def test_another_flower_is_refused_aloud(monkeypatch):
    monkeypatch.delattr(http_grid, "inflate_object_from_contents")

    with pytest.raises(RuntimeError, match=r"^flwr: expected a version"):
        streaming.take_up()
