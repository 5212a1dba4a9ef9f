"""Flower's own side of a SuperNode, without a server: messages go in, replies out."""

import hashlib
import io
import threading
import time
import zipfile
from contextlib import contextmanager

import uvicorn
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message, _push_messages

from fcl_flower.core.processes import free_port

SECRET = b"between two"
NODE = 7
PROJECT = """
[project]
name = "app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fcl"
[tool.flwr.app.components]
serverapp = "none:app"
clientapp = "{}"
"""
APP = """
import os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app, answered = ClientApp(), 0
@app.train()
def train(message, context):
    global answered
    deed = message.content["wanted"]["deed"]
    if deed == "die":
        os.kill(os.getpid(), 9)
    if deed == "leave":
        os._exit(5)
    if deed == "hang":
        time.sleep(600)
    if deed == "raise":
        raise ValueError("as it happens")
    answered += 1
    seen = context.state.setdefault("seen", ConfigRecord({"count": 0}))
    seen["count"] += 1
    told = {"process": os.getpid(), "answered": answered, "code": __file__}
    content = RecordDict({"told": ConfigRecord({**told, **seen})})
    return Message(content, reply_to=message)
"""


def shipped(ref, source=APP):
    """Return an app of Flower's, called by a name, that brings its own code."""
    *folders, name = ref.partition(":")[0].split(".")
    files = {"pyproject.toml": PROJECT.format(ref).encode()}
    for depth in range(len(folders)):
        files["/".join([*folders[: depth + 1], "__init__.py"])] = b""
    files["/".join([*folders, f"{name}.py"])] = source.encode()
    listed = (
        f"{path},{hashlib.sha256(content).hexdigest()},{8 * len(content)}"
        for path, content in files.items()
    )
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w") as file:
        for path, content in files.items():
            file.writestr(path, content)
        file.writestr(".info/CONTENT", "\n".join(listed))
    return bundle.getvalue()


class SuperNode:
    """What a SuperNode keeps and serves, and what it is asked by a server."""

    def __init__(self, address, state):
        self.address = address
        self.state = state

    def begin(self, run, fab):
        """Let a run be known, as its first message does."""
        found = Run.create_empty(run)
        found.fab_id, found.fab_version, found.series_id = "fcl/app", "1.0.0", run
        found.fab_hash = hashlib.sha256(fab).hexdigest()
        context = Context(run, NODE, {}, RecordDict(), {}, series_id=run)
        self.state.set_run_series_context(run, context)
        self.state.store_run(found)
        self.state.store_fab(Fab(found.fab_hash, fab, {}))

    def offer(self, run, kind=TaskType.CLIENT_APP):
        """Offer the task of a message, which is stored a moment later."""
        fab = self.state.get_run(run).fab_hash
        assert self.state.create_task(task_type=kind, run_id=run, fab_hash=fab)

    def store(self, run, deed, ttl):
        _insert_message(question(run, deed, ttl), self.state, self.state.object_store)

    def ask(self, run, deed="", ttl=600.0, kind=TaskType.CLIENT_APP):
        self.offer(run, kind)
        self.store(run, deed, ttl)

    def send(self, send):
        """Do what a SuperNode does with one answer; return what of it has left."""
        left = []
        store = self.state.object_store
        _push_messages(self.state, store, send, lambda *object: left.append(object))
        return left

    def reply(self):
        """Return the one answer that there is."""
        (found,) = self.state.get_messages_legacy(is_reply=True)
        return found

    def told(self):
        """Return what the one answer says."""
        tree = self.state.object_store.get_object_tree(self.reply().metadata.message_id)
        while tree.children:
            (tree,) = tree.children
        return dict(ConfigRecord.inflate(self.state.object_store.get(tree.object_id)))


def question(run, deed="", ttl=600.0):
    """Return what a server asks."""
    wanted = RecordDict({"wanted": ConfigRecord({"deed": deed})})
    asked = Message(wanted, NODE, "train", ttl=ttl)
    asked.metadata.__dict__["_run_id"] = run
    return asked


@contextmanager
def supernode():
    """Yield a SuperNode that hands out its messages to who knows `SECRET`."""
    factory = NodeStateFactory(ObjectStoreFactory())
    factory.state().set_node_id(NODE)
    port = free_port()
    served = create_app(factory, SECRET)
    server = uvicorn.Server(
        uvicorn.Config(served, port=port, log_level="error", ws="none", loop="asyncio")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield SuperNode(f"127.0.0.1:{port}", factory.state())
    finally:
        server.should_exit = True
        thread.join()
