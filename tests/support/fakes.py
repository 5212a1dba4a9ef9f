"""A grid that misbehaves as a test asks for, and the small runs on it."""

import json

import numpy as np
from flwr.app import Error, Message

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import SparseArray
from fcl_flower.federation.messages import decode_request
from fcl_flower.results.recorder import Recorder
from fcl_flower.runtime import in_process as one_process
from fcl_flower.runtime.in_process import run_apps


class InProcessGrid(one_process.InProcessGrid):
    """Nodes with ids of your choice, one for each partition.

    ``tamper(client, message, reply)`` may return another reply, or None for none. A
    client that raises is answered for by an error, as Flower does. ``delay(client)``
    is the number of pulls that find nothing yet; ``deaf(client, message)`` says that a
    message cannot be sent. ``places[i]`` is what else the node of partition ``i`` is
    configured with.
    """

    def __init__(
        self, nodes, run_config, tamper=None, delay=None, deaf=None, places=()
    ):
        super().__init__(nodes, run_config, places)
        self.tamper = tamper or (lambda client, message, reply: reply)
        self.delay = delay or (lambda client: 0)
        self.deaf = deaf or (lambda client, message: False)
        self.waits = {}
        self.asked = []

    def push_messages(self, messages):
        return [self.push(message) for message in messages]

    def push(self, message):
        client = self.client(message)
        if self.deaf(client, message):
            return None  # as Flower reports a message that it cannot send
        (name,) = super().push_messages([message])
        self.waits[name] = self.delay(client)
        return name

    def pull_messages(self, message_ids):
        found = []
        for name in message_ids:
            if self.waits.get(name, 0) > 0:
                self.waits[name] -= 1
            else:
                found += (r for r in super().pull_messages([name]) if r is not None)
        return found

    def reply(self, message, context):
        client = self.client(message)
        self.asked.append((client, message))
        return self.tamper(client, message, self.answer(message, context))

    def answer(self, message, context):
        return super().reply(message, context)

    def client(self, message):
        return self.contexts[message.metadata.dst_node_id].node_config["partition-id"]


def failure(message, reason):
    """Return the reply by which Flower says that a client failed."""
    return Message(Error(code=0, reason=reason), reply_to=message)


def tiny(folder, **values):
    """Return the smallest run worth the name, on real digits."""
    small = {"clients": 2, "tasks": 2, "rounds": 1, "classes_per_task": 2}
    return RunConfig.from_settings(**{**small, "output": str(folder), **values})


def run_in_process(config, nodes=None, **behaviour):
    """Run a RunConfig without Ray; return the grid with every node's context."""
    nodes = nodes or [101 + 7 * i for i in range(config.scenario.clients)]
    grid = InProcessGrid(nodes, config.flat(), **behaviour)
    run_apps(grid, config)
    return grid


def asked_in(message, number, kind="train"):
    """Return whether a message asks a client for something in a round."""
    if message.metadata.message_type != kind:
        return False
    return decode_request(message.content).stage.round == number


def summary_of(folder):
    """Return a run's summary without its duration, its memory and its environment."""
    found = json.loads((folder / "summary.json").read_text())
    del found["seconds"], found["peak_memory"], found["environment"]
    return found


def diagnostics_of(folder):
    """Read what the strategy of a run has reported; nothing without a file."""
    path = folder / "diagnostics.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rounds_of(folder):
    """Return the lines of a run's rounds.jsonl without their duration."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(li).items() if k != "seconds"} for li in lines]


def told_progress(monkeypatch):
    """Return a list of what runs will tell: their state, their round and who works."""
    told, progress = [], Recorder.progress

    def noted(recorder, number, done, expected, state="training", working=()):
        told.append((state, number, sorted(working)))
        progress(recorder, number, done, expected, state, working)

    monkeypatch.setattr(Recorder, "progress", noted)
    return told


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
