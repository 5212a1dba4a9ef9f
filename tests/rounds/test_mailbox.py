"""Over a network nobody waits for anybody: what blocks has a thread and a deadline."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fakes import InProcessTransport, rounds_of, tiny
from waiting import await_true

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.rounds import mailbox
from fcl_flower.rounds.codec import Encoded
from fcl_flower.rounds.mailbox import Mailbox, in_thread
from fcl_flower.rounds.transport import QUERY, TRAIN, Content, Reply, Request
from fcl_flower.simulation.in_process import run_simulated

NODES = [100, 101]


class Blocking(InProcessTransport):
    """Its calls for one node stand still until they are let go on."""

    blocking = True

    def __init__(self, call, **behaviour):
        super().__init__(NODES, RunConfig(), **behaviour)
        self.call, self.go_on = call, threading.Event()

    def stand_still(self, call, node):
        if call == self.call and node == 101:
            assert self.go_on.wait(40)

    def push(self, request, seconds):
        self.stand_still("send", request.node)
        return super().push(request, seconds)

    def receive(self, name, request):
        self.stand_still("receive", request.node)
        return super().receive(name, request)

    def honest_answer(self, request, place):
        return Content(scalars={"who": {}})


@pytest.fixture
def blocking():
    made = []

    def make(call, **behaviour):
        made.append(Blocking(call, **behaviour))
        return made[-1]

    yield make
    for transport in made:
        transport.go_on.set()


def question(node):
    return Request(node, QUERY)


def answers(box, number):
    found = []

    def all_are_there():
        found.extend(box.collect())
        return len(found) >= number

    await_true(all_are_there, lambda: str(found))
    return {reply.node: reply for reply in found}


@pytest.mark.parametrize("call", ["send", "receive"])
def test_what_blocks_for_one_client_delays_no_other(blocking, call):
    box = Mailbox(blocking(call), timeout=60)
    begun = time.monotonic()
    box.send([question(101)])
    box.send([question(100)])

    found = answers(box, 1)

    assert list(found) == [100]
    assert found[100].problem is None
    assert time.monotonic() - begun < 20
    assert len(box) == 1


@pytest.mark.parametrize(
    ("call", "push_seconds", "timeout", "reason"),
    [
        ("send", 0.1, 60, "could not be reached"),
        ("send", 60.0, 0.1, "could not be reached"),
        ("receive", 60.0, 0.1, "no reply in time"),
    ],
)
def test_a_call_that_blocks_too_long_is_given_up(
    blocking, monkeypatch, call, push_seconds, timeout, reason
):
    monkeypatch.setattr(mailbox, "PUSH_SECONDS", push_seconds)
    box = Mailbox(blocking(call), timeout)
    box.send([question(101)])

    (reply,) = answers(box, 1).values()

    assert reply.problem.reason == reason
    assert len(box) == 0


def test_what_raises_beyond_the_transport_does_so_when_it_is_opened(blocking):
    def broken():
        raise OSError("a message that came in is not whole")

    transport = blocking("nothing")
    transport.receive = lambda name, request: Reply(request, broken)
    box = Mailbox(transport, timeout=60)
    box.send([question(100)])

    (reply,) = answers(box, 1).values()

    for _ in range(2):
        with pytest.raises(OSError, match="not whole"):
            _ = reply.content


def test_a_large_message_may_take_longer_than_a_small_one():
    large = Encoded("uint8", (1,), "x", b"0" * 2**21)
    request = Request(100, TRAIN, Content({"base": {"w": large}}))

    assert mailbox._push_seconds([request]) == mailbox.PUSH_SECONDS + 2


def test_what_ends_a_run_while_it_sends_ends_it_here(blocking):
    transport = blocking("none")

    def stopped(requests, seconds):
        raise RoundError("the run was stopped")

    transport.send = stopped
    box = Mailbox(transport, timeout=60)

    def ask():
        box.send([question(100)])
        answers(box, 1)

    with pytest.raises(RoundError, match="was stopped"):
        ask()


@pytest.mark.run
def test_an_asynchronous_run_goes_on_beside_a_client_that_blocks(tmp_path):
    config = tiny(tmp_path, **{"asynchronous.enabled": True})
    trained, go_on = [], threading.Event()

    class Network(InProcessTransport):
        blocking = True

        def push(self, request, seconds):
            client = self.client(request)
            if request.kind != TRAIN:
                return super().push(request, seconds)
            if client == 1:  # until the other has gone through all of its tasks
                assert go_on.wait(90)
            name = super().push(request, seconds)
            trained.append(client)
            if trained.count(0) == 2:
                go_on.set()
            return name

    run_simulated(Network(NODES, config, delay=lambda client: 0), config)

    assert sorted(trained) == [0, 0, 1, 1]
    assert rounds_of(tmp_path)[0]["clients"] == [0]


def test_a_call_that_blocks_keeps_no_process_from_ending():
    thread = in_thread(threading.current_thread).result(30)

    assert thread.daemon


def test_a_push_that_a_sleep_of_the_machine_has_interrupted_is_not_given_up(
    blocking, monkeypatch
):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(mailbox, "time", clock)
    box = Mailbox(blocking("send"), timeout=3600)
    box.send([question(101)])

    clock.now += 5000.0  # of which ten seconds count
    answers = []
    for _ in range(int(mailbox.PUSH_SECONDS / 5)):
        assert answers == []
        answers = list(box.collect())
        clock.now += 5.0

    (answer,) = answers
    assert answer.problem.reason == "could not be reached"


@pytest.mark.parametrize("call", ["send", "receive"])
def test_who_is_answered_for_is_busy_until_it_was_to_reply(blocking, monkeypatch, call):
    now = 0.0
    clock = Mock(side_effect=lambda: now)
    monkeypatch.setattr(mailbox, "PatientClock", lambda _: clock)
    box = Mailbox(blocking(call), timeout=60)
    box.send([question(101)])
    while call == "receive" and box._pushes:
        assert list(box.collect()) == []

    (late,) = box.close()

    assert mailbox.is_late(late)
    assert len(box) == 0
    assert box.busy() == {101}
    now = 61.0
    assert box.busy() == set()
