"""Many clients on one machine: in this process, or in Flower's simulation runtime.

In Flower's runtime a run gets a Flower app folder of its own, a SuperLink on a free
port and a private ``FLWR_HOME``, all below its output folder, and then goes the public
way: ``flwr run``. Nothing outlives it, and it shares nothing with any other Flower.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.privacy.randomness import SIMULATION
from fcl_flower.results.run_folder import WORK, close_folder, prepared_folder
from fcl_flower.runtime.flower_project import (
    SUPERLINK,
    environment,
    write_app,
    write_superlink,
)
from fcl_flower.runtime.lifetime.guardian import guarded, release
from fcl_flower.runtime.processes import (
    Progress,
    await_port,
    follow,
    free_port,
    program,
)
from fcl_flower.setup import resolve
from fcl_flower.setup.resolved_run import ResolvedRun


def run_on(
    backend: str,
    run: ResolvedRun,
    folder: Path,
    *,
    workers: int | None = None,
    gpus_per_client: float = 0.0,
    local_data: Sequence[Path] = (),
    watch: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """Run one configuration into a folder; return its summary.

    Args:
        backend: ``in-process`` or ``flower``; the numbers are the same.
        run: resolved.
        folder: exists and can be written.
        workers: of Flower's runtime, clients that train at the same time; None for one
            a CPU core.
        gpus_per_client: of Flower's runtime.
        local_data: in this process, the folder of each client's local data.
        watch: called with the progress when it changes.

    Raises:
        RoundError: the run failed.
    """
    if backend == "in-process":
        from fcl_flower.runtime.in_process import run_in_process

        return run_in_process(run.config, folder, local_data=local_data, watch=watch)
    return simulate(
        run.config,
        folder,
        workers=workers or len(os.sched_getaffinity(0)),
        gpus_per_client=gpus_per_client,
        watch=watch,
    )


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    workers: int,
    gpus_per_client: float,
    watch: Callable[[Progress], None],
) -> dict[str, Any]:
    """Run ``config`` in Flower's simulation runtime; return its summary.

    Args:
        config: with a number of clients; with ``resume`` what clients remember stays.
        folder: for the results; exists and is writable.
        workers: clients that train at the same time, one CPU core each.
        gpus_per_client: share of a GPU that a client is given, 0 for none.
        watch: called with the contents of ``progress.json`` when they change.

    Raises:
        RoundError: the run failed; the message names the log with the reason.
    """
    with prepared_folder(config, folder, resolve.data_root(config)) as prepared:
        _run(prepared, folder, workers, gpus_per_client, watch)
        return close_folder(folder)


def _run(
    config: RunConfig,
    folder: Path,
    workers: int,
    gpus_per_client: float,
    watch: Callable[[Progress], None],
) -> None:
    work = folder / WORK
    app = work / "app"
    write_app(app, config)
    log = folder / "flower.log"
    with log.open("w") as sink, _superlink(work, sink) as env:
        command = [
            program("flwr"),
            *("run", str(app), SUPERLINK, "--stream"),
            "--federation-config",
            f"num-supernodes={config.scenario.clients} client-resources-num-cpus=1 "
            f"client-resources-num-gpus={gpus_per_client} "
            f"init-args-num-cpus={workers}",
        ]
        run = guarded(command, env, sink)
        try:
            state = follow(run, folder / "progress.json", watch)
        finally:
            release(run)
    if state != "finished":
        raise RoundError(f"the run did not finish; the reason stands in {log}")


@contextlib.contextmanager
def _superlink(work: Path, sink: IO[str]) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations; yield the environment to reach it."""
    port, control = free_port(), free_port()
    home = work / "home"
    write_superlink(home, f"127.0.0.1:{port}", None)
    env = {
        **environment(home),
        SIMULATION: "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # clients are the work, not a background chore
    }
    command = [
        program("flower-superlink"),
        *("--insecure", "--simulation", "--isolation", "subprocess"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--control-api-address", f"127.0.0.1:{control}"),
    ]
    process = guarded(command, env, sink)
    try:
        await_port(process, port)
        yield env
    finally:
        release(process)
