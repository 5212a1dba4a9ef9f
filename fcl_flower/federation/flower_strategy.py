"""An algorithm of ours as a Flower strategy, for a ServerApp of anybody's own."""

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
