"""Flower's grid before our ClientApp, and messages as they travel between machines."""

from threading import Lock

from flwr.app import Context, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fcl_flower.flower_app.client_app import app
from fcl_flower.rounds.client import forget_runs


def travelled(records, damage=lambda contents: None):
    """Take records apart and put them together as Flower does between two machines.

    ``damage`` may change the bytes of the objects, which it gets by their hash.
    """
    objects = get_all_nested_objects(records)
    contents = {name: found.deflate() for name, found in objects.items()}
    damage(contents)
    return inflate_object_from_contents(records.object_id, contents)


class Grid:
    """Nodes that answer by our ClientApp, one after another, when they are looked at.

    What is sent and what clients keep is taken apart and put together, as by Flower.
    ``tamper(client, message, reply)`` may return another reply, or None for none.
    Clients that ``forget`` answer each message as a new process does.
    """

    def __init__(self, nodes, run_config, tamper=None, *, forget=False):
        self.contexts = {
            node: Context(1, node, {"partition-id": client}, RecordDict(), run_config)
            for client, node in enumerate(nodes)
        }
        self.tamper = tamper or (lambda client, message, reply: reply)
        self.asked = []
        self._forget = forget
        self._waiting = {}
        self._lock = Lock()

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        names = [f"message-{len(self._waiting) + n}" for n in range(len(messages))]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name
            self._waiting[name] = message
        return names

    def pull_messages(self, message_ids):
        with self._lock:
            replies = [self._answered(name) for name in message_ids]
        return [reply for reply in replies if reply is not None]

    def _answered(self, name):
        message = self._waiting[name]
        if message is None:
            return None
        self._waiting[name] = None
        node = message.metadata.dst_node_id
        context = self.contexts[node]
        client = context.node_config["partition-id"]
        message.content = travelled(message.content)
        self.asked.append((client, message))
        if self._forget:
            forget_runs()
        reply = app(message, context)
        self.contexts[node] = context_from_proto(context_to_proto(context))
        if reply.has_content():
            reply.content = travelled(reply.content)
        return self.tamper(client, message, reply)
