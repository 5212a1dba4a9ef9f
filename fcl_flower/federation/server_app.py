"""The Flower ServerApp: one federated continual learning run."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.flower_strategy import flower_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    flower_strategy(config.strategy.name, config).start(grid)
