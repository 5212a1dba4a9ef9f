"""Runs in Flower's simulation on Ray."""

import os
import threading
import traceback
from logging import ERROR

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fcl_flower.config.run_config import RunConfig
from fcl_flower.flower_app.client_app import app as client_app
from fcl_flower.flower_app.grid import GridTransport
from fcl_flower.flower_app.log import join_flower
from fcl_flower.simulation.in_process import run_simulated


def run_in_ray(config: RunConfig, workers: int, gpus_per_client: float) -> None:
    """Simulate one run to its end, with the server's side in this process.

    Each client has a CPU core and a share of a GPU. Where Flower's engine fails, this
    process ends: the server would wait for answers that cannot come.
    """
    join_flower()
    app, served = ServerApp(), threading.Event()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run_simulated(GridTransport(grid, simulated=True), config)
        finally:
            served.set()

    # Flower uses a running Ray, and ends it. A Ray of Flower's own gives its actors an
    # environment, so that they cannot be Ray's ready processes. It also gives this
    # process a PYTHONPATH that grows with each run.
    ray.init(num_cpus=workers, include_dashboard=False, logging_level=ERROR)
    try:
        run_simulation(
            app,
            client_app,
            config.scenario.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": gpus_per_client}
            },
        )
    except Exception:
        if served.is_set():
            raise
        traceback.print_exc()
        os._exit(1)
