"""FedWeIT that stops at a moment of a round and waits to be killed.

The file ``arm`` in the folder ``$FAULTS`` names the moment: ``MOMENT ROUND``. Whoever
comes to it, client 1 or the server, writes its process number into ``reached`` and
waits to be killed, or for a file ``go``; ``arm`` is taken away first, so that it
happens once.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from typing_extensions import override

from clients.fedweit.client import FedWeit as FedWeitLearner
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Payload, TaskStage, Update
from fcl_flower.data.examples import TaskData
from strategies.fedweit import FedWeit, FedWeitParams

VICTIM = 1


def reach(moment: str, number: int) -> None:
    """Wait to be killed, if this is the moment."""
    folder = Path(os.environ["FAULTS"])
    armed = folder / "arm"
    try:
        if armed.read_text() != f"{moment} {number}":
            return
        armed.unlink()
    except FileNotFoundError:
        return
    (folder / "reached.new").write_text(str(os.getpid()))
    (folder / "reached.new").replace(folder / "reached")
    while not (folder / "go").exists():
        time.sleep(0.1)


class PausedStrategy(FedWeit[FedWeitParams]):
    """The server side."""

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        aggregated = super().aggregate_train(state, stage, updates)
        reach("aggregation", stage.round)
        return aggregated


class PausedLearner(FedWeitLearner[FedWeitParams]):
    """The client side."""

    _round = 0

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        self._reach("before training", stage.round)
        trained = super().train(state, received, stage, data)
        self._reach("during training", stage.round)
        self._round = stage.round
        return trained

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        # It is evaluated when its state is on the disk, and before it answers.
        self._reach("after training", self._round)
        return super().predict(state, received, task, x)

    def _reach(self, moment: str, number: int) -> None:
        if self.context.client == VICTIM:
            reach(moment, number)


PAUSED = Algorithm(
    name="paused",
    server="paused:PausedStrategy",
    client="paused:PausedLearner",
    params_type=FedWeitParams,
    summary="FedWeIT that waits to be killed",
    paper="Yoon et al., 2021",
)
