"""Nothing is left of a message that came in as its run was stopped.

The step that takes messages in is Flower's own; the server is a few functions here.
"""

import os
import subprocess
import sys
from contextlib import closing

import pytest
from flwr.app.message import remove_content_from_message
from flwr.common.constant import Status
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal
from supernodes import SECRET, question, shipped, supernode

from fcl_flower.deploy.commands import client_program
from fcl_flower.deploy.speedups import pace, stopped_runs
from fcl_flower.deploy.speedups.resident import Executor
from fcl_flower.deploy.speedups.worker import OURS

pytestmark = pytest.mark.process


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    with supernode() as found:
        for run in (1, 2):
            found.begin(run, shipped(OURS))
        yield found


@pytest.fixture
def executor(node):
    with closing(Executor(node.address, SECRET)) as found:
        yield found


def stopped(*message):
    raise RunNotRunningException


class Server:
    """Has one message, and lets it be fetched."""

    def __init__(self, run):
        message = question(run)
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            objects = get_all_nested_objects(message)
            self.objects = {name: one.deflate() for name, one in objects.items()}
            self.found = remove_content_from_message(message), get_object_tree(message)

    def receive(self):
        return self.found

    def pull_object(self, run, name):
        return self.objects[name]

    def confirm(self, run, name):
        pass


def taken_in(node, server):
    """Do a SuperNode's step; return the run of the message that there is now."""
    step = stopped_runs.leaving_nothing(start_client_internal._pull_and_store_message)
    return step(
        state=node.state,
        object_store=node.state.object_store,
        node_config={},
        receive=server.receive,
        get_run=None,
        get_fab=None,
        pull_object=server.pull_object,
        confirm_message_received=server.confirm,
        trusted_entities=None,
    )


def test_a_message_that_is_there_is_answered(node, executor):
    assert taken_in(node, Server(1)) == 1

    assert executor.look()
    assert node.told()["answered"] == 1


@pytest.mark.parametrize("at", ["pull_object", "confirm"])
def test_nothing_is_left_of_a_message_whose_run_was_stopped(node, executor, at):
    server = Server(1)
    setattr(server, at, stopped)

    assert taken_in(node, server) is None

    (task,) = node.state.get_tasks()
    assert (task.status.sub_status, task.status.details) == (
        "failed",
        "its run was stopped before its message was there",
    )
    assert not node.state.get_messages_legacy()
    assert not len(node.state.object_store)
    assert not executor.look()
    taken_in(node, Server(2))
    assert executor.look()
    assert node.told()["answered"] == 1


def test_an_answer_that_was_given_meanwhile_does_not_stand_for_the_next(node, executor):
    server = Server(1)

    def too_late(*message):
        assert executor.look()
        raise RunNotRunningException

    server.confirm = too_late
    taken_in(node, server)
    assert not len(node.state.object_store)
    taken_in(node, Server(2))
    assert executor.look()

    assert node.reply().metadata.run_id == 2


def test_a_task_of_before_goes_on(node):
    """A worker says that it has finished after its answer has left."""
    node.offer(1)
    (before,) = node.state.get_tasks()
    server = Server(1)
    server.pull_object = stopped

    taken_in(node, server)

    found = {task.task_id: task.status.status for task in node.state.get_tasks()}
    assert found.pop(before.task_id) == Status.PENDING
    assert list(found.values()) == [Status.FINISHED]


def test_where_there_is_no_message_nothing_is_touched(node):
    node.ask(1)
    server = Server(1)
    server.receive = lambda: None

    assert taken_in(node, server) is None

    assert len(node.state.get_messages_legacy()) == 1


def test_a_supernode_is_run_so(tmp_path):
    script = tmp_path / "flower-supernode"
    script.write_text(
        "import sys\n"
        "from flwr.supernode import start_client_internal as found\n"
        "from inspect import getclosurevars\n"
        "step = found._pull_and_store_message\n"
        "inner = getclosurevars(step).nonlocals['step']\n"
        "print(step.__module__, inner.__module__, sys.argv[1:], __name__)\n"
        "sys.exit(4)\n"
    )
    command = client_program([str(script), "--insecure"], ["stopped_runs", "pace"])

    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))

    # The step is a function of ours around another of ours, which is around Flower's.
    ours = [pace.__name__, stopped_runs.__name__]
    assert done.stdout.split(maxsplit=2) == [*ours, "['--insecure'] __main__\n"]
    assert done.returncode == 4
    assert command[0] == sys.executable


def test_flower_alone_keeps_a_message_of_a_run_that_was_stopped(node, monkeypatch):
    monkeypatch.setattr(stopped_runs, "leaving_nothing", lambda step: step)
    server = Server(1)
    server.confirm = stopped

    assert taken_in(node, server) is None

    assert node.state.get_messages_legacy()
