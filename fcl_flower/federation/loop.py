"""What both loops share: what Flower's user gets, and how a run ends."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from logging import INFO
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import refuse
from fcl_flower.federation.messages import to_array_record
from fcl_flower.federation.prepare import FederatedRun, prepare
from fcl_flower.flower.identity import log

EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


class FederatedStrategy(Strategy):
    """A Flower strategy that runs one of our algorithms on our ClientApp.

    The clients' nodes need the same run configuration as the server: a ServerApp takes
    it from its context, `RunConfig.of(context.run_config)`.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare a strategy; nothing is loaded before `start`."""
        self._config = config
        self._min_updates = config.federation.min_updates
        self._max_attempts = config.federation.max_attempts
        self._run: FederatedRun | None = None
        self._result = Result()

    @property
    def run(self) -> FederatedRun:
        """Return what the loop works on.

        Raises:
            RuntimeError: `start` has not been called.
        """
        if self._run is None:
            raise RuntimeError(f"{type(self).__name__}.start has not been called")
        return self._run

    @override
    def summary(self) -> None:
        """Log what is learned in how many rounds."""
        schedule = self.run.schedule
        log(
            INFO,
            "%s: %d clients, %d tasks of %d rounds",
            self._config.strategy.name,
            schedule.clients,
            schedule.tasks,
            schedule.rounds_per_task,
        )

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the whole federation and write its run folder and report.

        Args:
            grid: connects to the nodes.
            initial_arrays: the model's shared tensors by name; None or empty for those
                that the run's seed draws. A resumed run continues from its checkpoint.
            num_rounds: of the whole run, of each client where it is asynchronous: a
                multiple of the number of tasks. None for what is configured.
            timeout: seconds to wait for clients and for their replies; None for what
                is configured.
            train_config: refused unless empty, as clients read the run configuration.
            evaluate_config: likewise.
            evaluate_fn: called with the round and the global model before the first
                round and after each; refused where there is no global model.

        Returns:
            The final global model, where there is one, and by round the means of the
            clients' losses and test accuracies. A resumed run has only its own rounds.

        Raises:
            ConfigError: an argument or a setting is refused.
            RoundError: too few usable replies, or no client was evaluated.
        """
        for key, given in (
            ("train_config", train_config),
            ("evaluate_config", evaluate_config),
        ):
            if given:
                raise refuse(
                    key, dict(given), "none, as clients read the run configuration"
                )
        if num_rounds is not None and num_rounds < 1:
            raise refuse("num_rounds", num_rounds, "at least 1")
        seconds = self._config.federation.timeout if timeout is None else timeout
        if not seconds > 0:
            raise refuse("timeout", timeout, "a number of seconds above 0")
        with ExitStack() as stack:
            run = prepare(
                self._config, grid, initial_arrays, num_rounds, seconds, stack
            )
            rounds = run.schedule.num_rounds
            result = self.run_rounds(run, grid, rounds, seconds, evaluate_fn)
            run.server.finish()
            stopped = run.ledger is not None and run.server.done < rounds
            if self._config.privacy.scores and not stopped:
                run.server.check_evaluated()
        return result

    def run_rounds(
        self,
        run: FederatedRun,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds up to ``num_rounds`` that are not finished yet.

        Args:
            run: from `prepare`.
            grid: connects to the nodes.
            num_rounds: the last round.
            timeout: seconds to wait for replies.
            evaluate_fn: see `start`.

        Raises:
            ConfigError: there is no global model for ``evaluate_fn``.
            RoundError: too few usable replies.
        """
        self._run, self._result = run, Result()
        if evaluate_fn and run.server.global_model is None:
            raise refuse(
                "evaluate_fn",
                evaluate_fn,
                f"None, as {self._config.strategy.name} has no global model",
            )
        self.summary()
        self._result.arrays = to_array_record(run.server.global_model)
        if not run.server.done:
            self._evaluate(0, evaluate_fn)
        self._loop(grid, num_rounds, timeout, evaluate_fn)
        return self._result

    @abstractmethod
    def _loop(
        self,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        """Run all rounds and enter what they bring into the result."""

    def _evaluate(self, server_round: int, evaluate_fn: EvaluateFn | None) -> None:
        """Let the user evaluate the global model after a round."""
        found = evaluate_fn(server_round, self._result.arrays) if evaluate_fn else None
        if found is not None:
            self._result.evaluate_metrics_serverapp[server_round] = found
