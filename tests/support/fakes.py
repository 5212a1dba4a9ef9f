"""A Grid that calls the ClientApp in this process: a whole round in milliseconds."""

import json
from uuid import uuid4

import numpy as np
from flwr.app import Context, Error, Message, RecordDict

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.sparse import SparseArray
from fcl_flower.federation.client_app import app as client_app
from fcl_flower.federation.server_app import main as serve


class InProcessGrid:
    """Nodes with ids of your choice, one for each partition.

    ``tamper(client, message, reply)`` may return another reply, or None for none. A
    client that raises is answered for by an error, as Flower does. ``delay(client)``
    is the number of pulls that find nothing yet; ``deaf(client, message)`` says that a
    message cannot be sent. ``places[i]`` is what else the node of partition ``i`` is
    configured with.
    """

    def __init__(
        self, nodes, run_config, tamper=None, delay=None, deaf=None, places=None
    ):
        places = places or [{} for _ in nodes]
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={
                    "partition-id": i,
                    "num-partitions": len(nodes),
                    **places[i],
                },
                state=RecordDict(),
                run_config=run_config,
            )
            for i, node in enumerate(nodes)
        }
        self.tamper = tamper or (lambda client, message, reply: reply)
        self.delay = delay or (lambda client: 0)
        self.deaf = deaf or (lambda client, message: False)
        self.replies = {}
        self.waits = {}
        self.asked = []

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            context = self.contexts[message.metadata.dst_node_id]
            client = context.node_config["partition-id"]
            if self.deaf(client, message):
                ids.append(None)  # as Flower reports a message that it cannot send
                continue
            ids.append(message.metadata.message_id)
            self.asked.append((client, message))
            reply = self.tamper(client, message, self.answer(message, context))
            if reply is not None:
                self.replies[ids[-1]] = reply
                self.waits[ids[-1]] = self.delay(client)
        return ids

    def answer(self, message, context):
        try:
            return client_app(message, context)
        except Exception as error:
            return failure(message, f"{type(error).__name__}: {error}")

    def pull_messages(self, message_ids):
        found = []
        for name in message_ids:
            if self.waits.get(name, 0) > 0:
                self.waits[name] -= 1
            elif name in self.replies:
                found.append(self.replies.pop(name))
        return found


def failure(message, reason):
    """Return the reply by which Flower says that a client failed."""
    return Message(Error(code=0, reason=reason), reply_to=message)


def tiny(folder, **values):
    """Return the smallest run worth the name, on real digits."""
    small = {"clients": 2, "tasks": 2, "rounds": 1, "classes_per_task": 2}
    return RunConfig(**{**small, "output": str(folder), **values})


def run_in_process(config, nodes=None, **behaviour):
    """Run a RunConfig without Ray; return the grid with every node's context."""
    flat = config.flat()
    nodes = nodes or [101 + 7 * i for i in range(config.clients)]
    grid = InProcessGrid(nodes, flat, **behaviour)
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=flat
    )
    serve(grid, context)
    return grid


def summary_of(folder):
    """Return a run's summary without its duration."""
    found = json.loads((folder / "summary.json").read_text())
    del found["seconds"]
    return found


def rounds_of(folder):
    """Return the lines of a run's rounds.jsonl without their duration."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(li).items() if k != "seconds"} for li in lines]


def exact(payload):
    """Return a payload as plain values: a copy that compares bit by bit, NaN too."""

    def plain(tensor):
        if isinstance(tensor, SparseArray):
            return ("sparse", tensor.shape, plain(tensor.indices), plain(tensor.values))
        return (tensor.dtype.name, tensor.shape, np.asarray(tensor).tobytes())

    return {
        group: {name: plain(tensor) for name, tensor in arrays.items()}
        for group, arrays in payload.items()
    }
