"""The Flower ServerApp of a service, which trains on each new task without an end."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcl_flower.flower_app.server_app import run_with
from fcl_flower.rounds.service import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve until the run is stopped."""
    run_with(serve, grid, context)
