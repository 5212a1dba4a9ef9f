"""Messages go and come piece by piece; what arrives is what was sent."""

import threading
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import push_objects
from memory import peak_of

from fcl_flower.deploy.speedups import streaming

MB = 2**20


def array(size, seed=0):
    data = np.random.default_rng(seed).bytes(size)
    return Array("uint8", (size,), "fcl.dense", data)


def parts(records):
    """Return the objects of a message by id, as they are stored."""
    return {
        name: one.deflate() for name, one in get_all_nested_objects(records).items()
    }


def received(contents, root):
    found = streaming.inflated(
        root, streaming.pulled(list(contents), contents.__getitem__)
    )
    streaming.join(found)
    return found


@pytest.mark.parametrize("size", [0, 3, MB - 1, 5 * MB, 12 * MB + 1])
def test_a_tensor_of_any_size_arrives_whole(size):
    record = ArrayRecord()
    record["w"], record["again"] = array(size), array(size)
    record["constant"] = Array("uint8", (11 * MB,), "x", bytes(11 * MB))
    sent = RecordDict({"base": record})

    found = received(parts(sent), sent.object_id)["base"]

    assert {n: bytes(found[n].data) for n in found} == {
        n: one.data for n, one in record.items()
    }
    assert [found["w"].dtype, found["w"].shape] == ["uint8", (size,)]
    assert found["w"].data is found["again"].data  # as it was sent once


def test_a_tensor_that_has_come_takes_its_own_memory_and_a_few_pieces(tmp_path):
    record = ArrayRecord()
    record["w"] = array(60 * MB)
    sent = RecordDict({"base": record})
    folder = {}
    for name, content in parts(sent).items():
        folder[name] = tmp_path / name
        folder[name].write_bytes(content)

    def pull(name):
        return folder[name].read_bytes()

    def waits():
        message = streaming.inflated(
            sent.object_id, streaming.pulled(list(folder), pull)
        )
        assert len(message["base"]["w"].data) == 0

    def is_read():
        message = streaming.inflated(
            sent.object_id, streaming.pulled(list(folder), pull)
        )
        streaming.join(message)
        assert len(message["base"]["w"].data) == 60 * MB

    assert peak_of(waits) < 40
    assert peak_of(is_read) < 100


def test_pieces_are_made_as_others_leave(monkeypatch):
    monkeypatch.setattr(
        inflatable_utils, "push_object_contents_from_iterable", streaming.pushed
    )
    sent = array(60 * MB)
    objects = get_all_nested_objects(sent)
    names, seen, lock = list(objects), [], threading.Lock()

    def push(name, content):
        with lock:
            seen.append((name, len(content)))

    assert peak_of(lambda: push_objects(objects, push)) < 40
    assert sorted(name for name, _ in seen) == sorted(names)
    assert sum(size for _, size in seen) > 60 * MB


def test_the_first_push_that_fails_ends_the_others():
    made = []

    def contents():
        for number in range(100):
            made.append(number)
            yield str(number), b""

    def push(name, content):
        raise ConnectionError(name)

    with pytest.raises(ConnectionError):
        streaming.pushed(contents(), push)
    assert len(made) < 10


def test_a_push_that_fails_leaves_none_under_way():
    """Flower ends a process of which a push arrives after its task."""
    slow, arrived = threading.Event(), []

    def push(name, content):
        if name == "slow":
            slow.set()
            time.sleep(0.2)
            arrived.append(name)
        else:
            assert slow.wait(10)
            raise ConnectionError(name)

    with pytest.raises(ConnectionError):
        streaming.pushed([("fails", b""), ("slow", b"")], push)
    assert arrived == ["slow"]


def test_a_message_that_does_not_fit_on_the_disk_is_refused(monkeypatch):
    monkeypatch.setattr(streaming.os, "pwrite", lambda *given: 0)
    sent = array(2 * MB)
    contents = parts(sent)

    with pytest.raises(OSError, match="no space"):
        streaming.pulled(list(contents), contents.__getitem__)


def test_flower_alone_has_a_tensor_twice_beside_its_pieces():
    record = ArrayRecord()
    record["w"] = array(30 * MB)
    sent = RecordDict({"base": record})
    contents, name = parts(sent), sent.object_id

    whole = inflatable_utils.inflate_object_from_contents
    assert peak_of(lambda: whole(name, contents)) > 55
