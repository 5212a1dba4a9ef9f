"""A message is given again until its client has confirmed it."""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager

from fcl_flower.deploy.speedups.deliveries import ConfirmedDeliveries

# Of Flower's migrations.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")


class Link:
    """A SuperLink with a run and two nodes."""

    def __init__(self, folder, kind=ConfirmedDeliveries):
        self.store = InMemoryObjectStore()
        path = str(folder / "superlink.db")
        self.state = kind(path, NoOpFederationManager(), self.store)
        self.state.initialize()
        self.run = self.state.create_run(
            *(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        )
        self.nodes = [self.state.create_node("", "", b"%d" % n, 0) for n in range(2)]
        for node in self.nodes:
            assert self.state.activate_node(node, 30.0)

    def send(self, node, number):
        content = RecordDict({"round": ConfigRecord({"number": number})})
        message = Message(content, self.nodes[node], "train")
        message.metadata.__dict__["_run_id"] = self.run
        message.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        message.metadata.__dict__["_message_id"] = message.object_id
        self.store.preregister(self.run, get_object_tree(message))
        assert self.state.store_message_ins(message) == message.object_id
        return message.object_id

    def ask(self, node):
        found = self.state.get_message_ins(self.nodes[node], limit=1)
        return [message.metadata.message_id for message in found]

    def confirm(self, name):
        self.store.delete(name)


@pytest.fixture
def link(tmp_path):
    return Link(tmp_path)


def test_a_message_whose_delivery_was_lost_is_given_again(link):
    name = link.send(0, 1)

    assert link.ask(0) == [name]
    assert link.ask(0) == [name]


def test_a_message_that_was_confirmed_is_not_given_again(link):
    first, second = link.send(0, 1), link.send(0, 2)

    assert link.ask(0) == [first]
    link.confirm(first)

    assert link.ask(0) == [second]
    link.confirm(second)
    assert link.ask(0) == []


def test_what_one_node_asks_changes_nothing_for_another(link):
    name = link.send(0, 1)
    assert link.ask(0) == [name]

    assert link.ask(1) == []

    link.confirm(name)
    assert link.ask(0) == []


def test_flower_alone_gives_a_message_once(tmp_path):
    link = Link(tmp_path, SqlLinkState)
    name = link.send(0, 1)

    assert link.ask(0) == [name]
    assert link.ask(0) == []
