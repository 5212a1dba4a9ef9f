"""A process that runs one run after another for a command, and both ends of it."""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import FclError, RoundError
from fcl_flower.core.processes import start_guarded, stop_guarded
from fcl_flower.flower_app.environment import environment
from fcl_flower.privacy.mechanism import SIMULATION
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.setup.entries import data_root

PROGRAM = "fcl_flower.simulation.runner"


class Runner:
    """Runs one configuration after another in a process of its own.

    The process is started for the first run, and anew for the next one if it has died.
    The process and its children end with the context, or with this process.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Prepare to run, by ``backend``, ``workers``, maybe ``gpus_per_client``."""
        self._options = options
        self._guardian: subprocess.Popen[bytes] | None = None
        self._channel: Connection
        self._folder = Path()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *problem: object) -> None:
        self._end()

    def begin(
        self, config: RunConfig, folder: Path, local_data: Sequence[Path] = ()
    ) -> None:
        """Begin a run in a folder that is there; the run before it is over."""
        if self._guardian is None:
            self._start()
        self._folder = folder
        places = [data.absolute() for data in local_data]
        try:
            self._channel.send((config.flat(), folder.absolute(), places))
        except OSError:
            return  # `result` finds that the process has died

    def fileno(self) -> int:
        """Descriptor that can be read when the run is over, for `select.select`."""
        return self._channel.fileno()

    def result(self) -> FclError | None:
        """Wait until the run is over; return why it has failed, None if it has not."""
        try:
            error: FclError | None = self._channel.recv()
        except (EOFError, OSError):
            self._end()
            log = self._folder / "flower.log"
            return RoundError(f"the run did not finish; the reason stands in {log}")
        return error

    def _start(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="fcl-flower-"))
        self._channel, its = Pipe()
        env = {
            **environment(home),
            SIMULATION: "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # clients are the work, not a background chore
        }
        with its:
            command = [sys.executable, "-P", "-m", PROGRAM, str(its.fileno())]
            self._guardian = start_guarded(
                [*command, json.dumps(self._options)],
                env,
                keep_open=[its.fileno()],
                scratch=home,
            )

    def _end(self) -> None:
        if self._guardian is not None:
            stop_guarded(self._guardian)
            self._channel.close()
            self._guardian = None


# ---- in the process

Run: TypeAlias = Callable[[RunConfig, Path, Sequence[Path]], None]
"""Runs a configuration into its folder, with each client's folder of local data."""


def _run_in_ray(
    config: RunConfig,
    folder: Path,
    local_data: Sequence[Path],
    *,
    workers: int,
    gpus_per_client: float,
) -> None:
    """Run a configuration into its folder.

    Raises:
        FclError: it is refused, or did not finish.
    """
    with prepared_folder(config, folder, data_root(config)) as prepared:
        log_file = folder / "flower.log"
        _write_to(log_file)
        try:
            # Imported here as it takes seconds, and may write to the log.
            from fcl_flower.simulation.ray import run_in_ray

            run_in_ray(prepared, workers, gpus_per_client)
        except Exception as error:
            traceback.print_exc()
            raise RoundError(
                f"the run did not finish; the reason stands in {log_file}"
            ) from error
        close_folder(folder, keep_clients=config.run.keep_clients)


def _run_in_process(
    config: RunConfig, folder: Path, local_data: Sequence[Path], *, workers: int
) -> None:
    from fcl_flower.simulation.in_process import run_in_process

    run_in_process(config, folder, local_data=local_data, workers=workers)


def _write_to(path: Path) -> None:
    """Let this process, and all that it has started, write to a new file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _serve(channel: Connection, run: Run) -> None:
    """Do runs until the channel is closed; answer each with its error, if any."""
    while True:
        try:
            settings, folder, local_data = channel.recv()
        except EOFError:
            return
        try:
            run(RunConfig.of(settings), folder, local_data)
        except FclError as error:
            channel.send(error)
        else:
            channel.send(None)


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    _options = json.loads(sys.argv[2])
    _in_ray = _options.pop("backend") == "flower"
    _run = partial(_run_in_ray if _in_ray else _run_in_process, **_options)
    _serve(Connection(int(sys.argv[1])), _run)
