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
        """Take up a run.

        Args:
            run: from `prepare`, fresh or resumed.
            grid: connects to the nodes.
            evaluate_fn: called with the round and the global model before the first
                round and after each.
        """
        self._run, self._grid, self._evaluate_fn = run, grid, evaluate_fn
        self._server, self._registry = run.server, run.registry
        self._schedule, self._clock = run.schedule, run.clock
        self._section = run.config.federation
        self._result = Result()

    def run(self) -> Result:
        """Run all rounds that are left.

        Returns:
            The final global model, where there is one, and by round the means of the
            clients' losses and test accuracies.

        Raises:
            ConfigError: there is no global model for ``evaluate_fn``.
            RoundError: too few usable replies.
        """
        name, schedule = self._run.config.strategy.name, self._schedule
        if self._evaluate_fn and self._server.global_model is None:
            expected = f"None, as {name} has no global model"
            raise config_error("evaluate_fn", self._evaluate_fn, expected)
        log(
            INFO,
            "%s: %d clients, %d tasks of %d rounds",
            name,
            schedule.clients,
            schedule.tasks,
            schedule.rounds_per_task,
        )
        self._note_model()
        if not self._server.done:
            self._evaluate_centrally()
        self._run_rounds()
        return self._result

    @abstractmethod
    def _run_rounds(self) -> None:
        """Run all rounds and enter what they bring into the result."""

    def _note_model(self) -> None:
        self._result.arrays = to_array_record(self._server.global_model)

    def _evaluate_centrally(self) -> None:
        """Let the user evaluate the global model after the last round."""
        if self._evaluate_fn is None:
            return
        number = self._server.done
        found = self._evaluate_fn(number, self._result.arrays)
        if found is not None:
            self._result.evaluate_metrics_serverapp[number] = found
