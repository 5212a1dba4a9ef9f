"""Requests over Flower's Grid: each reply is one for its request, or says why not."""

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fcl_flower.core.errors import WireError
from fcl_flower.flower_app import grid
from fcl_flower.flower_app.grid import UNAVAILABLE, GridTransport
from fcl_flower.rounds import mailbox, messages
from fcl_flower.rounds.mailbox import Mailbox
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.transport import QUERY, TRAIN, Content, Request


class Grid:
    """Takes the messages to nodes below 100; ``answer(message)`` answers them."""

    def __init__(self, answer=None):
        self.answer = answer
        self.pushed = []
        self.pulled = []

    def get_node_ids(self):
        return [7, 9]

    def push_messages(self, messages):
        taken = [m for m in messages if m.metadata.dst_node_id < 100]
        for message in taken:
            name = f"message-{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = name
            self.pushed.append(message)
        return [message.metadata.message_id for message in taken]

    def pull_messages(self, message_ids):
        self.pulled += message_ids
        if self.answer is None:
            return []
        number = int(message_ids[0].rpartition("-")[2])
        return [self.answer(self.pushed[number])]


REQUEST = Request(7, QUERY)


def received(answer):
    transport = GridTransport(Grid(answer))
    (name,) = transport.send([REQUEST], 5.0)
    return transport.receive(name, REQUEST)


def test_requests_are_messages_of_their_kind_to_their_node():
    flower = Grid()
    transport = GridTransport(flower)
    shared = MessageEncoder().payload({"base": {"w": np.ones(3)}})
    requests = [Request(node, kind, shared) for node, kind in ((9, TRAIN), (7, QUERY))]

    names = transport.send(requests, 12.5)

    assert names == ["message-0", "message-1"]
    assert list(transport.nodes()) == [7, 9]
    found = [(m.metadata.dst_node_id, m.metadata.message_type) for m in flower.pushed]
    assert found == [(9, "train"), (7, "query")]
    assert [m.metadata.ttl for m in flower.pushed] == [12.5, 12.5]
    one, other = (m.content["base"]["w"] for m in flower.pushed)
    assert one is other, "what all receive is uploaded once"
    assert transport.receive(names[0], requests[0]) is None
    assert flower.pulled == ["message-0"]


def test_what_flower_does_not_take_has_no_name():
    transport = GridTransport(Grid())
    requests = [Request(node, QUERY) for node in (7, 100, 9)]
    assert transport.send(requests, 5.0) == ["message-0", None, "message-1"]


def test_a_simulation_of_ours_blocks_nobody_and_answers_for_all():
    assert GridTransport(Grid()).blocking
    assert not GridTransport(Grid()).simulated
    ours = GridTransport(Grid(), simulated=True)
    assert (ours.simulated, ours.blocking) == (True, False)


def test_a_reply_is_opened_when_it_is_looked_at():
    payload = {"base": {"w": np.arange(3.0)}}
    records = RecordDict({"base": ArrayRecord()})
    made = MessageEncoder().payload(payload).tensors["base"]["w"]
    records["base"]["w"] = Array(made.dtype, made.shape, made.form, bytes(made.data))

    reply = received(lambda message: Message(records, reply_to=message))

    assert reply.problem is None
    found = messages.decode_payload(reply.content)["base"]["w"]
    np.testing.assert_array_equal(found, [0, 1, 2])


def test_a_reply_counts_for_the_node_that_was_asked():
    def somebody_else(message):
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 9
        return reply

    assert received(somebody_else).node == 7


def failing(code, reason="broken disk"):
    return lambda message: Message(Error(code=code, reason=reason), reply_to=message)


@pytest.mark.parametrize("reason", ["broken disk", None])
def test_an_error_is_a_problem_by_its_sentence(reason):
    reply = received(failing(0, reason))
    assert reply.problem.reason == f"the client failed: {reason}"
    assert reply.problem.why == "failed"
    with pytest.raises(WireError, match=f"the client failed: {reason}"):
        _ = reply.content


def test_a_node_without_a_sign_of_life_is_gone():
    assert UNAVAILABLE == ErrorCode.NODE_UNAVAILABLE
    reply = received(failing(ErrorCode.NODE_UNAVAILABLE, "2 x its interval"))
    assert mailbox.is_gone(reply)
    assert "nothing was heard of it since" in reply.problem.reason
    assert "interval" not in reply.problem.reason
    assert not mailbox.is_gone(received(failing(ErrorCode.UNKNOWN)))


def test_a_node_that_is_listed_no_more_is_gone_after_a_while(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(grid.time, "monotonic", lambda: now[0])
    flower = Grid()
    transport = GridTransport(flower)
    requests = [Request(node, TRAIN) for node in (7, 9)]
    names = transport.send(requests, 3600.0)

    def replies():
        return [transport.receive(*pair) for pair in zip(names, requests, strict=True)]

    for seconds, here, gone in (
        (200, [7, 9], False),  # a machine that slept asks before it judges
        (50, [9], False),
        (20, [9], True),
    ):
        now[0] += seconds
        flower.get_node_ids = lambda here=here: here
        first, second = replies()
        assert second is None
        assert (first is not None and mailbox.is_gone(first)) == gone
    told = (
        r"is not connected: nothing was heard of it since \d\d:\d\d:\d\d, and it is no"
    )
    assert re.match(told, first.problem.reason)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError("k"), RecursionError(), MemoryError()]
)
def test_what_flower_cannot_unpack_is_a_problem_of_its_client(error):
    def raises(message):
        raise error

    reply = received(raises)

    assert reply.problem.why == "failed"
    assert reply.problem.reason.startswith("its reply cannot be opened: ")
    assert type(error).__name__ in reply.problem.reason


class Raises:
    """Content whose every use raises."""

    def __getattr__(self, name):
        raise KeyError(name)


@pytest.mark.parametrize(
    "content",
    [None, {}, "text", 3, Raises()],
    ids=["none", "table", "text", "number", "raises"],
)
def test_content_that_is_none_raises_only_when_it_is_looked_at(content):
    def strange(message):
        reply = Message(RecordDict(), reply_to=message)
        reply.__dict__["_content"] = content
        if content is None:  # Flower tells an error by the lack of content
            reply.__dict__["_error"] = None
        return reply

    reply = received(strange)

    if reply.problem is None:
        with pytest.raises(Exception, match=r"."):
            _ = reply.content
    else:
        assert reply.problem.reason.startswith("its reply cannot be opened: ")


def test_a_mailbox_collects_over_a_grid_what_is_answered():
    def answer(message):
        if message.metadata.dst_node_id == 9:
            raise ValueError("rubbish")
        return Message(RecordDict(), reply_to=message)

    box = Mailbox(GridTransport(Grid(answer)), timeout=60)
    box.send([Request(node, QUERY) for node in (7, 9, 100)])
    found = {}
    while len(found) < 3:
        found |= {reply.node: reply for reply in box.collect()}

    assert found[7].content == Content()
    assert "rubbish" in found[9].problem.reason
    assert found[100].problem.reason == "could not be reached"
