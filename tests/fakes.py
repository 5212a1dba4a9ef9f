"""A Grid that calls the ClientApp in this process: a whole round in milliseconds."""

from uuid import uuid4

from flwr.app import Context, RecordDict

from fcl_flower.client_app import app as client_app
from fcl_flower.server_app import main as serve


class InProcessGrid:
    """Nodes with random ids; ``tamper(number, message)`` may replace a reply."""

    def __init__(self, nodes, run_config, tamper=None):
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": i, "num-partitions": len(nodes)},
                state=RecordDict(),
                run_config=run_config,
            )
            for i, node in enumerate(nodes)
        }
        self.tamper = tamper
        self.replies = {}
        self.log = []

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            context = self.contexts[message.metadata.dst_node_id]
            self.log.append(message)
            reply = client_app(message, context)
            if self.tamper is not None:
                number = context.node_config["partition-id"]
                reply = self.tamper(number, message, reply)
            if reply is not None:
                self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def run_in_process(config, nodes=None, tamper=None):
    """Run a RunConfig without Ray; return the grid with every node's context."""
    flat = config.flat()
    grid = InProcessGrid(nodes or [101 + 7 * i for i in range(config.clients)], flat)
    grid.tamper = tamper
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=flat
    )
    serve(grid, context)
    return grid
