"""A whole federation in this process: no Ray, no network, a round in milliseconds.

The two Flower apps run as they are, one client after the other or several in a pool of
processes, and each message goes through the same codec, so that numbers and byte counts
are those of Flower's runtimes.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.kept.run_parts import forget_runs
from fcl_flower.federation.kept.shared_memory import within_process
from fcl_flower.federation.server_app import main as run_server
from fcl_flower.privacy.randomness import simulated
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.runtime.in_process.grid import InProcessGrid
from fcl_flower.runtime.in_process.identity import RUN_ID, flower_identity, log_to
from fcl_flower.runtime.in_process.worker_pool import PooledGrid, WorkerPool
from fcl_flower.runtime.processes import Progress
from fcl_flower.setup import resolve
from fcl_flower.setup.threads import limited_threads

FIRST_NODE = 100
"""So that no test passes that takes a node's id for a client's number."""

_ONE_RUN = threading.RLock()
"""Flower's identity, its log and torch's threads belong to the process."""


class _WatchError(BaseException):
    """What the caller's own ``watch`` has raised: no client is to blame for it."""

    def __init__(self, raised: Exception) -> None:
        super().__init__()
        self.raised = raised


def run_in_process(
    config: RunConfig,
    folder: Path,
    *,
    watch: Callable[[Progress], None] = lambda progress: None,
    local_data: Sequence[Path] = (),
    workers: int = 1,
    verbose: bool = False,
) -> dict[str, Any]:
    """Run ``config`` in this process; return its summary.

    One run at a time: a second thread waits for the first to finish.

    Args:
        config: with a number of clients; with ``resume`` the clients' states stay.
        folder: for the results; exists and is writable.
        watch: called with the progress when a client has answered, and at the end.
        local_data: with local data, the folder of each client.
        workers: clients that are at work at the same time; more than one are in
            processes beside this one, whose main module is imported there.
        verbose: show Flower's log on the console; it is in ``flower.log`` otherwise.

    Raises:
        FclError: the configuration is refused, or the run failed.
    """
    log_file = None if verbose else folder / "flower.log"
    with (
        _ONE_RUN,
        prepared_folder(
            config, folder, resolve.data_root(config), local_data
        ) as prepared,
        log_to(log_file, mode="w"),
    ):
        if workers == 1:
            return _run(prepared, folder, watch, local_data, InProcessGrid)
        with WorkerPool(workers, log_file) as pool:
            grid = partial(PooledGrid, pool)
            return _run(prepared, folder, watch, local_data, grid)


def _run(
    config: RunConfig,
    folder: Path,
    watch: Callable[[Progress], None],
    local_data: Sequence[Path],
    make_grid: Callable[..., InProcessGrid],
) -> dict[str, Any]:
    path, seen = folder / "progress.json", Progress()

    def report(**changes: object) -> None:
        nonlocal seen
        now: Progress = json.loads(path.read_text()) | changes
        if now != seen:
            seen = now
            try:
                watch(now)
            except Exception as error:
                raise _WatchError(error) from error

    grid = make_grid(
        range(FIRST_NODE, FIRST_NODE + config.scenario.clients),
        config.flat(),
        [{"data-path": str(path.absolute())} for path in local_data],
        on_turn=lambda working, done, sent: report(
            working=working, clients_done=done, clients=sent
        ),
    )
    try:
        run_apps(grid, config)
        report()
    except _WatchError as error:
        raise error.raised from None
    return close_folder(folder, keep_clients=config.run.keep_clients)


def run_apps(grid: Grid, config: RunConfig) -> None:
    """Run the server app to its end on a grid of this process."""
    context = Context(
        run_id=RUN_ID,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config=dict(config.flat()),
    )
    with (
        simulated(),
        flower_identity(),
        _same_threads(),
        limited_threads(algorithm(config.strategy.name), config.training.threads),
        _own_parts(),
        within_process(),
    ):
        run_server(grid, context)


@contextlib.contextmanager
def _own_parts() -> Iterator[None]:
    """Let no run of this process find what another has built: all have one number."""
    forget_runs()
    try:
        yield
    finally:
        forget_runs()


@contextlib.contextmanager
def _same_threads() -> Iterator[None]:
    """Give torch its number of threads back, which every client sets."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
