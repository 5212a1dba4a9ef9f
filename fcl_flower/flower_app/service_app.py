"""The Flower ServerApp of a service, which trains on each new task without an end."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.files import lock_folder
from fcl_flower.flower_app.server_app import noted_run, run_with
from fcl_flower.rounds.transport import Transport
from fcl_flower.service.loop import Service
from fcl_flower.service.status import SERVICE_LOCK

PATIENCE = 60.0
"""Seconds that an earlier run of the service may take to end."""


def _serve(config: RunConfig, transport: Transport) -> None:
    folder = Path(config.run.output)
    with (
        lock_folder(folder, "run.output", SERVICE_LOCK, PATIENCE),
        noted_run(config),
    ):
        Service(config, transport).run()


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve until the run is stopped."""
    run_with(_serve, grid, context)
