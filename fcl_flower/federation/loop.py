"""What both loops share: how a run begins, and what Flower's user gets of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import INFO
from typing import TypeAlias

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fcl_flower.core.errors import config_error
from fcl_flower.federation.messages import to_array_record
from fcl_flower.federation.prepare import FederatedRun
from fcl_flower.flower.identity import log

EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]
"""From a round and the global model to what the user measures of it."""


class Loop(ABC):
    """Runs the rounds of a federation that are not finished yet."""

    def __init__(
        self, run: FederatedRun, grid: Grid, evaluate_fn: EvaluateFn | None = None
    ) -> None:
        """Take up a run of `prepare`, fresh or resumed; see `FlowerStrategy.start`."""
        self._run, self._grid, self._evaluate_fn = run, grid, evaluate_fn
        self._server, self._registry = run.server, run.registry
        self._schedule, self._clock = run.schedule, run.clock
        self._section = run.config.federation
        self._result = Result()

    def run(self) -> Result:
        """Run all rounds that are left; see `FlowerStrategy.start`."""
        name, schedule = self._run.config.strategy.name, self._schedule
        if self._evaluate_fn and self._server.global_model is None:
            expected = f"None, as {name} has no global model"
            raise config_error("evaluate_fn", self._evaluate_fn, expected)
        log(
            INFO,
            "%s: %d clients, %d tasks, %d rounds",
            name,
            schedule.clients,
            schedule.tasks,
            schedule.num_rounds,
        )
        self._note_model()
        if not self._server.done:
            self._evaluate_centrally()
        self._run_rounds()
        return self._result

    @abstractmethod
    def _run_rounds(self) -> None:
        pass

    def _note_model(self) -> None:
        self._result.arrays = to_array_record(self._server.global_model)

    def _evaluate_centrally(self) -> None:
        if self._evaluate_fn is None:
            return
        number = self._server.done
        found = self._evaluate_fn(number, self._result.arrays)
        if found is not None:
            self._result.evaluate_metrics_serverapp[number] = found
