"""A transport that misbehaves as a test asks for, and the small runs on it."""

import json

import numpy as np

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import SparseArray
from fcl_flower.results.recorder import Recorder
from fcl_flower.rounds.messages import decode_request
from fcl_flower.rounds.transport import Problem, Reply
from fcl_flower.simulation import in_process as one_process
from fcl_flower.simulation.in_process import run_simulated


class InProcessTransport(one_process.InProcessTransport):
    """Nodes with ids of your choice, one for each client.

    ``tamper(client, request, reply)`` may return another reply, or None for none. A
    client that raises is answered for by a problem. ``delay(client)`` is the number of
    looks that find nothing yet; ``deaf(client, request)`` says that a request cannot be
    sent. ``places[i]`` is what else the node of client ``i`` is configured with. With a
    delay seconds count, as over a network.
    """

    def __init__(self, nodes, config, tamper=None, delay=None, deaf=None, places=()):
        super().__init__(nodes, config, places)
        self.simulated = delay is None
        self.tamper = tamper or (lambda client, request, reply: reply)
        self.delay = delay or (lambda client: 0)
        self.deaf = deaf or (lambda client, request: False)
        self.waits = {}
        self.asked = []

    def send(self, requests, seconds):
        return [self.push(request, seconds) for request in requests]

    def push(self, request, seconds):
        client = self.client(request)
        if self.deaf(client, request):
            return None  # as Flower reports a message that it cannot send
        (name,) = super().send([request], seconds)
        self.waits[name] = self.delay(client)
        return name

    def receive(self, name, request):
        if self.waits.get(name, 0) > 0:
            self.waits[name] -= 1
            return None
        if name not in self._queued:
            return None
        reply = super().receive(name, request)
        return None if reply.problem == SILENCE else reply

    def answer(self, request, place):
        client = self.client(request)
        self.asked.append((client, request))
        reply = Reply(request, self.honest_answer(request, place))
        reply = self.tamper(client, request, reply)
        if reply is None:
            return SILENCE
        return reply.problem or reply.content

    def honest_answer(self, request, place):
        return super().answer(request, place)

    def client(self, request):
        return self.places[request.node].number


SILENCE = Problem("", "late")


def failure(request, reason):
    """Return the reply that says that a client failed."""
    return Reply(request, Problem(reason))


def tiny(folder, **values):
    """Return the smallest run worth the name, on real digits."""
    small = {"clients": 2, "tasks": 2, "rounds": 1, "classes_per_task": 2}
    return RunConfig.from_settings(**{**small, "output": str(folder), **values})


def run_in_process(config, nodes=None, **behaviour):
    """Run a RunConfig without Ray; return the transport with every client's place."""
    nodes = nodes or [101 + 7 * i for i in range(config.scenario.clients)]
    transport = InProcessTransport(nodes, config, **behaviour)
    run_simulated(transport, config)
    return transport


def asked_in(request, number, kind="train"):
    """Return whether a request asks a client for something in a round."""
    if request.kind != kind:
        return False
    return decode_request(request.content).stage.round == number


def trained_by(transport, client):
    """Return the stages in which a client was asked to train."""
    return [
        decode_request(request.content).stage
        for who, request in transport.asked
        if who == client and request.kind == "train"
    ]


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
