"""A process that runs one run after another for a command, and both ends of it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeAlias

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, FclError, RoundError
from fcl_flower.core.processes import start_guarded, stop_guarded
from fcl_flower.flower_app.environment import environment
from fcl_flower.privacy.mechanism import SIMULATION
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.setup.entries import data_root

PROGRAM = "fcl_flower.simulation.runner"


class Runner:
    """Runs one configuration after another in a process of its own.

    The process is started for the first run, and anew for the next one if it has died.
    It ends with the context, or with this process, and all that it has started does.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Prepare to run, by ``backend``, ``workers``, maybe ``gpus_per_client``."""
        self._options = options
        self._guardian: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket
        self._answers: TextIOWrapper
        self._folder = Path()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *problem: object) -> None:
        self._end()

    def begin(
        self, config: RunConfig, folder: Path, local_data: Sequence[Path] = ()
    ) -> None:
        """Begin a run in a folder that is there; that before it is over."""
        if self._guardian is None:
            self._start()
        self._folder = folder
        request = {
            "config": config.flat(),
            "folder": str(folder.absolute()),
            "local_data": [str(data.absolute()) for data in local_data],
        }
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return  # that the process has died is found when it is to answer

    def fileno(self) -> int:
        """Descriptor that can be read when the run is over, for `select.select`."""
        return self._channel.fileno()

    def result(self) -> FclError | None:
        """Wait until the run is over; return why it has failed, None if it has not."""
        try:
            line = self._answers.readline()
        except ConnectionResetError:
            line = ""
        if not line:
            self._end()
            log = self._folder / "flower.log"
            return RoundError(f"the run did not finish; the reason stands in {log}")
        if not (answer := json.loads(line)):
            return None
        kind = ConfigError if answer["kind"] == "ConfigError" else RoundError
        return kind(answer["error"])

    def _start(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="fcl-flower-"))
        self._channel, its = socket.socketpair()
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
        self._answers = self._channel.makefile("r")

    def _end(self) -> None:
        if self._guardian is not None:
            stop_guarded(self._guardian)
            self._answers.close()
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
        _speak_to(log_file)
        try:
            # Imported here as it takes seconds, and may speak.
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


def _speak_to(path: Path) -> None:
    """Let this process, and what it has started, write to a new file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _answer(run: Run, line: str) -> dict[str, str]:
    """Run what a line asks for; return the error, empty if there is none."""
    asked = json.loads(line)
    try:
        local_data = [Path(data) for data in asked["local_data"]]
        run(RunConfig.of(asked["config"]), Path(asked["folder"]), local_data)
    except FclError as error:
        kind = "ConfigError" if isinstance(error, ConfigError) else "RoundError"
        return {"error": str(error), "kind": kind}
    return {}


def _serve(channel: socket.socket, options: dict[str, Any]) -> None:
    flower = options.pop("backend") == "flower"
    run = partial(_run_in_ray if flower else _run_in_process, **options)
    with channel.makefile("rw") as lines:
        for line in lines:
            lines.write(json.dumps(_answer(run, line)) + "\n")
            lines.flush()


if __name__ == "__main__":
    _own = socket.socket(fileno=int(sys.argv[1]))
    _own.set_inheritable(False)
    _serve(_own, json.loads(sys.argv[2]))
