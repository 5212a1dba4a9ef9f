"""Our algorithms as Flower strategies."""

from collections.abc import Callable
from typing import NoReturn, TypeAlias, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Arrays
from fcl_flower.flower_app.grid import GridTransport
from fcl_flower.flower_app.log import join_flower
from fcl_flower.flower_app.records import array_record, model_of
from fcl_flower.rounds.loop import EvaluateFn as OurEvaluateFn
from fcl_flower.rounds.loop import Metrics
from fcl_flower.rounds.run import run_federation

EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]
"""A function of a round and the global model that returns the user's measures."""


class FlowerStrategy(Strategy):
    """A Flower strategy that runs one of our algorithms on our ClientApp.

    The server tells its run to the clients. A ServerApp takes it from its context,
    `RunConfig.of(context.run_config)`. Only `start` may be called: a loop of ours takes
    the place of Flower's.
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

        For the arguments, the result and the errors see `run_federation`, whose
        ``initial_model`` is ``initial_arrays``. ``train_config`` and
        ``evaluate_config`` are refused, as clients read the run configuration.
        """
        join_flower()
        given = {"train_config": train_config, "evaluate_config": evaluate_config}
        for key, record in given.items():
            if record:
                expected = "none, as clients read the run configuration"
                raise config_error(key, dict(record), expected)
        found = run_federation(
            self._config,
            GridTransport(grid),
            model_of(initial_arrays),
            num_rounds,
            timeout,
            evaluate_fn and _ours(evaluate_fn),
        )
        result = Result()
        result.arrays = array_record(found.model)
        for metrics, by_round in (
            (found.train_metrics, result.train_metrics_clientapp),
            (found.evaluate_metrics, result.evaluate_metrics_clientapp),
            (found.own_metrics, result.evaluate_metrics_serverapp),
        ):
            by_round.update({n: MetricRecord(dict(m)) for n, m in metrics.items()})
        return result

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise NotImplementedError("our strategies run a loop of their own: call start")

    configure_train = aggregate_train = _refuse
    configure_evaluate = aggregate_evaluate = summary = _refuse


def _ours(evaluate_fn: EvaluateFn) -> OurEvaluateFn:
    def evaluate(number: int, model: Arrays) -> Metrics | None:
        found = evaluate_fn(number, array_record(model))
        return None if found is None else cast(Metrics, dict(found))

    return evaluate


def flower_strategy(name: str, config: RunConfig) -> FlowerStrategy:
    """Make a Flower strategy; call its ``start(grid, ...)`` in a ServerApp.

    The nodes run the ClientApp of this project, `fcl_flower.flower_app.client_app`. The
    name of the strategy in the configuration is replaced.
    """
    return FlowerStrategy(config.replace(strategy=name))
