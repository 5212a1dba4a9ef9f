"""The Flower ServerApp: one federated continual learning run."""

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import FclError, config_error
from fcl_flower.federation import clients
from fcl_flower.federation.async_loop import AsyncLoop
from fcl_flower.federation.loop import EvaluateFn
from fcl_flower.federation.prepare import prepare
from fcl_flower.federation.sync_loop import SyncLoop
from fcl_flower.flower.transport import is_remote
from fcl_flower.results.known_runs import FOLDER, noted


class FlowerStrategy(Strategy):
    """A Flower strategy that runs one of our algorithms on our ClientApp.

    The clients' nodes need the same run configuration as the server: a ServerApp takes
    it from its context, `RunConfig.of(context.run_config)`. Only `start` may be called:
    a loop of ours takes the place of Flower's.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare a strategy; nothing is loaded before `start`."""
        self._config = config

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
        given = {"train_config": train_config, "evaluate_config": evaluate_config}
        for key, record in given.items():
            if record:
                expected = "none, as clients read the run configuration"
                raise config_error(key, dict(record), expected)
        if num_rounds is not None and num_rounds < 1:
            raise config_error("num_rounds", num_rounds, "at least 1")
        seconds = self._config.federation.timeout if timeout is None else timeout
        if not seconds > 0:
            raise config_error("timeout", timeout, "a number of seconds above 0")
        loop = AsyncLoop if self._config.asynchronous.enabled else SyncLoop
        with ExitStack() as stack:
            run = prepare(
                self._config, grid, initial_arrays, num_rounds, seconds, stack
            )
            result = loop(run, grid, evaluate_fn).run()
            run.server.finish()
            private = run.ledger is not None
            stopped = private and run.server.done < run.schedule.num_rounds
            if self._config.privacy.scores and not stopped:
                run.server.check_evaluated()
        return result

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise NotImplementedError("our strategies run a loop of their own: call start")

    configure_train = aggregate_train = _refuse
    configure_evaluate = aggregate_evaluate = summary = _refuse


def flower_strategy(name: str, config: RunConfig) -> FlowerStrategy:
    """Make a Flower strategy; call its ``start(grid, ...)`` in a ServerApp.

    The nodes run the ClientApp of this project, `fcl_flower.federation.client_app`,
    with the same run configuration; the name of its strategy is replaced.
    """
    return FlowerStrategy(config.replace(strategy=name))


def noted_run(config: RunConfig) -> AbstractContextManager[None]:
    """Note beside the server's state that a run goes on; nothing in a simulation."""
    state = clients.server_state()
    if state is None or not config.run.id:
        return nullcontext()
    return noted(state / FOLDER, config.run.id, Path(config.run.output))


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    try:
        with noted_run(config):
            flower_strategy(config.strategy.name, config).start(grid)
    except FclError:
        if is_remote(grid):
            # The message is for the user. Flower prints the rest, and ends the process.
            sys.tracebacklimit = 0
        raise
