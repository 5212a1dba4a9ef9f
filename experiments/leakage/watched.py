"""A run in this process of which an attacker has seen all messages of the training."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import Arrays, Payload, TaskStage
from fcl_flower.data.examples import Examples, SplitName
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds import messages
from fcl_flower.rounds.checkpoint import MemoryStateStore
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.transport import TRAIN, Content, Problem, Request
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import (
    FIRST_NODE,
    InProcessTransport,
    run_simulated,
)
from fcl_flower.training.tensors import dense


@dataclass(frozen=True, slots=True)
class Exchange:
    """One training: what a client received, and what it sent."""

    client: int
    stage: TaskStage
    received: Payload
    sent: Payload


class WatchedRun:
    """A run that is over: what went over the wire, and the truth beside it.

    Attributes:
        exchanges: in the order in which they happened.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        """Run; the arguments are those of `RunConfig.from_settings`."""
        config = RunConfig.from_settings(**settings)
        self._run = Built(resolve(config))
        clients = config.scenario.clients
        nodes = range(FIRST_NODE, FIRST_NODE + clients)
        with tempfile.TemporaryDirectory() as folder:
            placed = config.replace(output=str(Path(folder) / "run"))
            transport = _WatchedTransport(nodes, placed)
            run_simulated(transport, placed)
        self.exchanges = transport.exchanges
        self._places = dict(enumerate(transport.places.values()))

    def examples(self, client: int, task: int, split: SplitName) -> Examples:
        """Return what a client really has."""
        tasks = self._run.config.scenario.tasks
        return client_data(self._run, self._places[client], tasks).examples(task, split)

    def model(self) -> MultiHeadModel:
        """Return the network, as initialised everywhere."""
        return self._run.model()

    def learner(self, client: int) -> tuple[ClientLearner[Any], Payload]:
        """Return the client side of a client, and what it keeps."""
        saved = MemoryStateStore(self._places[client]).load(before=2**31)
        state: Payload = {} if saved is None else saved.state
        return self._run.learner(client), state

    def last(self, client: int) -> Exchange:
        """Return a client's last training."""
        return [one for one in self.exchanges if one.client == client][-1]


class _WatchedTransport(InProcessTransport):
    exchanges: list[Exchange]

    @override
    def answer(self, request: Request, place: Place) -> Content | Problem:
        answer = super().answer(request, place)
        if request.kind == TRAIN and isinstance(answer, Content):
            stage = messages.decode_request(request.content).stage
            update = messages.decode_update(answer, stage)
            received = messages.decode_payload(request.content)
            self.__dict__.setdefault("exchanges", []).append(
                Exchange(place.number, stage, received, update.payload)
            )
        return answer


def added(base: Arrays, adapter: Arrays) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return a base with an adapter on it, by name."""
    found = {name: np.array(dense(tensor)) for name, tensor in base.items()}
    for name, tensor in adapter.items():
        found[name] = found[name] + dense(tensor)
    return found
