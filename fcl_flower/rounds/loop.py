"""The base of both loops: it begins a run, and collects the result for the caller."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import TypeAlias

from fcl_flower.core.errors import config_error
from fcl_flower.core.log import log
from fcl_flower.core.types import Arrays
from fcl_flower.rounds.prepare import FederatedRun

Metrics: TypeAlias = Mapping[str, float]
EvaluateFn: TypeAlias = Callable[[int, Arrays], Metrics | None]
"""A function of a round and the global model that returns the caller's measures."""


@dataclass
class LoopResult:
    """The results of a run in memory.

    Attributes:
        model: the final global model; empty where there is none.
        train_metrics: mean loss and number of the clients trained, by round.
        evaluate_metrics: mean test accuracies of the clients, by round.
        own_metrics: the caller's measures of the global model, by round.
    """

    model: Arrays = field(default_factory=dict)
    train_metrics: dict[int, Metrics] = field(default_factory=dict)
    evaluate_metrics: dict[int, Metrics] = field(default_factory=dict)
    own_metrics: dict[int, Metrics] = field(default_factory=dict)


class Loop(ABC):
    """Runs the rounds of a federation that are not finished yet."""

    def __init__(
        self, run: FederatedRun, evaluate_fn: EvaluateFn | None = None
    ) -> None:
        """Take up a run of `prepare`, fresh or resumed; see `run_federation`."""
        self._run, self._evaluate_fn = run, evaluate_fn
        self._server, self._registry = run.server, run.server.registry
        self._transport = self._registry.transport
        self._schedule, self._clock = run.schedule, run.clock
        self._section = run.config.federation
        self._result = LoopResult()

    def run(self) -> LoopResult:
        """Run all rounds that are left; see `run_federation`."""
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
        self._result.model = self._server.global_model or {}

    def _evaluate_centrally(self) -> None:
        if self._evaluate_fn is None:
            return
        number = self._server.done
        metrics = self._evaluate_fn(number, self._result.model)
        if metrics is not None:
            self._result.own_metrics[number] = metrics
