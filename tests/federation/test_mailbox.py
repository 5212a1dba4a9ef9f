"""Over a network nobody waits for anybody: what blocks has a thread and a deadline."""

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fakes import InProcessGrid, rounds_of, tiny
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fcl_flower.core.errors import RoundError
from fcl_flower.federation import clients, mailbox
from fcl_flower.federation.mailbox import Mailbox
from fcl_flower.flower import transport
from fcl_flower.runtime.in_process import run_apps

NODES = [100, 101]


class BlockingGrid(InProcessGrid):
    """Its calls for one node stand still until they are let go on."""

    def __init__(self, call, **behaviour):
        super().__init__(NODES, {}, **behaviour)
        self.call, self.go_on = call, threading.Event()

    def stand_still(self, call, node):
        if call == self.call and node == 101:
            assert self.go_on.wait(40)

    def push(self, message):
        # As Flower does, before anything blocks.
        message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
        self.stand_still("push", message.metadata.dst_node_id)
        return super().push(message)

    def pull_messages(self, message_ids):
        for name in message_ids:
            asked = self._queued.get(name)
            self.stand_still("pull", asked and asked.metadata.dst_node_id)
        return super().pull_messages(message_ids)

    def answer(self, message, context):
        return Message(RecordDict({"who": ConfigRecord()}), reply_to=message)


@pytest.fixture
def remote(monkeypatch):
    """Make every grid one that goes over a network."""
    for module in (mailbox, clients):
        monkeypatch.setattr(module, "is_remote", lambda grid: True)


@pytest.fixture
def blocking():
    made = []

    def make(call, **behaviour):
        made.append(BlockingGrid(call, **behaviour))
        return made[-1]

    yield make
    for grid in made:
        grid.go_on.set()


def question(node):
    return Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)


def answers(box, number, seconds=30.0):
    found, deadline = [], time.monotonic() + seconds
    while len(found) < number:
        assert time.monotonic() < deadline, found
        found += box.collect()
        box.pause()
    return {reply.metadata.src_node_id: reply for reply in found}


@pytest.mark.parametrize("call", ["push", "pull"])
def test_what_blocks_for_one_client_delays_no_other(remote, blocking, call):
    box = Mailbox(blocking(call), timeout=60)
    begun = time.monotonic()
    box.send([question(101)])
    box.send([question(100)])

    found = answers(box, 1)

    assert list(found) == [100]
    assert not found[100].has_error()
    assert time.monotonic() - begun < 20
    assert len(box) == 1


def test_a_message_that_cannot_be_handed_over_is_given_up(
    remote, blocking, monkeypatch
):
    monkeypatch.setattr(mailbox, "PUSH_SECONDS", 0.1)
    box = Mailbox(blocking("push"), timeout=60)
    box.send([question(101)])

    (reply,) = answers(box, 1).values()

    assert reply.error.reason == "could not be reached"
    assert len(box) == 0


def test_handing_over_takes_no_longer_than_a_reply_may(remote, blocking):
    box = Mailbox(blocking("push"), timeout=0.1)
    box.send([question(101)])

    (reply,) = answers(box, 1).values()

    assert reply.error.reason == "could not be reached"


def test_a_reply_that_cannot_be_fetched_is_given_up(remote, blocking):
    box = Mailbox(blocking("pull"), timeout=0.1)
    box.send([question(101)])

    (reply,) = answers(box, 1).values()

    assert reply.error.reason == "no reply in time"


def test_a_reply_that_the_disk_gives_back_no_longer_costs_itself_alone(
    remote, blocking, monkeypatch
):
    def join(content):
        if not joined:
            joined.append(content)
            raise OSError("a message that came in is not whole")

    joined = []
    monkeypatch.setattr(mailbox.chunks, "join", join)
    box = Mailbox(blocking("nothing"), timeout=60)
    box.send([question(100)])
    box.send([question(101)])

    found = answers(box, 2)

    (lost,) = (reply for reply in found.values() if reply.has_error())
    assert "its reply cannot be read" in lost.error.reason
    assert "is not whole" in lost.error.reason


def test_a_large_message_may_take_longer_than_a_small_one():
    from flwr.app import Array, ArrayRecord

    array = Array(dtype="uint8", shape=(1,), stype="x", data=b"0" * 2**21)
    message = question(100)
    message.content["base"] = ArrayRecord({"w": array})

    assert mailbox._push_seconds([message]) == mailbox.PUSH_SECONDS + 2


def test_what_ends_a_run_while_it_sends_ends_it_here(remote, blocking):
    grid = blocking("none")

    def stopped(messages):
        raise RoundError("the run was stopped")

    grid.push_messages = stopped
    box = Mailbox(grid, timeout=60)

    def ask():
        box.send([question(100)])
        answers(box, 1)

    with pytest.raises(RoundError, match="was stopped"):
        ask()


def test_only_a_grid_of_flowers_over_http_is_remote(blocking):
    assert not transport.is_remote(blocking("none"))
    assert transport.is_remote(HttpGrid(token="x"))


def test_flowers_simulation_is_an_engine_that_answers_for_all(blocking):
    states = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    assert transport.is_engine(InMemoryGrid(states))
    assert not transport.is_engine(blocking("none"))
    assert not transport.is_engine(HttpGrid(token="x"))


def test_an_asynchronous_run_goes_on_beside_a_client_that_blocks(remote, tmp_path):
    config = tiny(tmp_path, **{"asynchronous.enabled": True})
    trained, go_on = [], threading.Event()

    class Grid(InProcessGrid):
        def push(self, message):
            client = self.client(message)
            if message.metadata.message_type != MessageType.TRAIN:
                return super().push(message)
            if client == 1:  # until the other has gone through all of its tasks
                assert go_on.wait(90)
            name = super().push(message)
            trained.append(client)
            if trained.count(0) == 2:
                go_on.set()
            return name

    run_apps(Grid(NODES, config.flat()), config)

    assert sorted(trained) == [0, 0, 1, 1]
    assert rounds_of(tmp_path)[0]["clients"] == [0]


def test_a_call_that_blocks_keeps_no_process_from_ending():
    thread = transport.in_thread(threading.current_thread).result(30)

    assert thread.daemon


def test_a_push_that_a_sleep_of_the_machine_has_interrupted_is_not_given_up(
    remote, blocking, monkeypatch
):
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(mailbox, "time", clock)
    box = Mailbox(blocking("push"), timeout=3600)
    box.send([question(101)])

    clock.now += 5000.0  # of which ten seconds count
    answers = []
    for _ in range(int(mailbox.PUSH_SECONDS / 5)):
        assert answers == []
        answers = list(box.collect())
        clock.now += 5.0

    (answer,) = answers
    assert answer.error.reason == "could not be reached"


@pytest.mark.parametrize("call", ["push", "pull"])
def test_who_is_answered_for_is_busy_until_it_was_to_reply(
    remote, blocking, monkeypatch, call
):
    now = 0.0
    clock = Mock(side_effect=lambda: now)
    monkeypatch.setattr(mailbox, "PatientClock", lambda _: clock)
    box = Mailbox(blocking(call), timeout=60)
    box.send([question(101)])
    while call == "pull" and box._pushes:
        assert list(box.collect()) == []

    (late,) = box.close()

    assert mailbox.is_late(late)
    assert len(box) == 0
    assert box.busy() == {101}
    now = 61.0
    assert box.busy() == set()
