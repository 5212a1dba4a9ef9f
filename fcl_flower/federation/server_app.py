"""The Flower ServerApp: one federated continual learning run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.async_loop import AsynchronousStrategy
from fcl_flower.federation.sync_loop import SynchronousStrategy


def flower_strategy(
    name: str, config: RunConfig
) -> SynchronousStrategy | AsynchronousStrategy:
    """Return a Flower strategy; call its ``start(grid, ...)`` in a ServerApp.

    The nodes run the ClientApp of this project, `fcl_flower.federation.client_app`,
    with the same run configuration.

    Args:
        name: an algorithm, as `fcl list` shows it.
        config: of the run; the name of its strategy is replaced.

    Raises:
        ConfigError: the configuration is refused.
    """
    config = config.replace(strategy=name)
    if config.asynchronous.enabled:
        return AsynchronousStrategy(config)
    return SynchronousStrategy(config)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    flower_strategy(config.strategy.name, config).start(grid)
