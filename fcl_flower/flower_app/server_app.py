"""The Flower ServerApps: one federated continual learning run, and a service."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from os import environ
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import FclError
from fcl_flower.core.files import lock_folder
from fcl_flower.flower_app.environment import SPEEDUPS
from fcl_flower.flower_app.grid import GridTransport
from fcl_flower.flower_app.log import join_flower
from fcl_flower.results.known_runs import FOLDER, noted
from fcl_flower.rounds.clients import server_state
from fcl_flower.rounds.run import run_federation
from fcl_flower.rounds.transport import Transport
from fcl_flower.service.loop import Service
from fcl_flower.service.status import SERVICE_LOCK

PATIENCE = 60.0
"""Seconds that an earlier run of a service may take to end."""


def run_with(
    work: Callable[[RunConfig, Transport], object], grid: Grid, context: Context
) -> None:
    """Do a server's work with the configuration of a Flower run, over its grid."""
    join_flower()
    if name := environ.get(SPEEDUPS):
        import_module(name).take_up()
    try:
        work(RunConfig.of(context.run_config), GridTransport(grid))
    except FclError:
        # The user needs only the message. Flower prints it, and ends the process.
        sys.tracebacklimit = 0
        raise


def noted_run(config: RunConfig) -> AbstractContextManager[None]:
    """Note beside the server's state that a run goes on.

    A simulation has no such state, and a run without a name is not noted.
    """
    state = server_state()
    if state is None or not config.run.id:
        return nullcontext()
    return noted(state / FOLDER, config.run.id, Path(config.run.output))


def _run(config: RunConfig, transport: Transport) -> None:
    with noted_run(config):
        run_federation(config, transport)


def _serve(config: RunConfig, transport: Transport) -> None:
    folder = Path(config.run.output)
    with (
        lock_folder(folder, "run.output", SERVICE_LOCK, PATIENCE),
        noted_run(config),
    ):
        Service(config, transport).run()


app = ServerApp()
service = ServerApp()  # a line each, as Flower looks for both names in this text


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    run_with(_run, grid, context)


@service.main()
def serve(grid: Grid, context: Context) -> None:
    """Train on each new task until the run is stopped."""
    run_with(_serve, grid, context)
