"""FedAvg that says when it asked, when clients worked, and when it was answered.

All times are seconds of the machine's clock, so that server and clients have to run on
one machine. The moments of a message are scalars of the client's update; those of a
round are diagnostics of the server side.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from typing_extensions import override

from fcl_flower.algorithms.base import Metrics, Params, Report, Turn, Updates
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Payload, TaskStage, Update
from strategies.fedavg import FedAvg


class TimedStrategy(FedAvg):
    """The server side."""

    _asked = 0.0
    _moments: Mapping[str, float] = MappingProxyType({})

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        self._asked = time.time()
        return super().send(state, stage, client)

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        # Now, since `send` is called for evaluations, too.
        self._moments = {"asked": self._asked, "answered": time.time()}
        return super().combine(state, stage, updates)

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        return self._moments


class TimedLearner(LocalTraining[Params]):
    """The client side."""

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        began = time.time()
        state, update = super().train(turn)
        moments = {"began": began, "ended": time.time()}
        return state, replace(update, metrics={**update.metrics, **moments})


TIMED = Algorithm(
    name="timed",
    server="timed:TimedStrategy",
    client="timed:TimedLearner",
    summary="FedAvg that looks at the clock",
    paper="McMahan et al., 2017",
)
