"""What a command holds of a process that runs one run after another for it."""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, FclError, RoundError
from fcl_flower.privacy.randomness import SIMULATION
from fcl_flower.runtime.flower_project import environment
from fcl_flower.runtime.lifetime.guardian import guarded, release

PROGRAM = "fcl_flower.runtime.runner.program"


class Runner:
    """Runs one configuration after another in a process of its own.

    The process is started for the first run, and anew for the next one if it has died.
    It ends with the context, or with this process, and all that it has started does.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Prepare to run; nothing is started yet.

        Args:
            options: ``backend`` and ``workers``, of ``flower`` also
                ``gpus_per_client``.
        """
        self._options = options
        self._process: _Process | None = None
        self._folder = Path()

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *problem: object) -> None:
        self._end()

    def begin(
        self, config: RunConfig, folder: Path, local_data: Sequence[Path] = ()
    ) -> None:
        """Begin a run; that before it is over.

        Args:
            config: with a number of clients.
            folder: of the run; exists and can be written.
            local_data: but in Flower's runtime, each client's folder of local data.
        """
        if self._process is None:
            self._process = _Process(self._options)
        self._folder = folder
        self._process.send(
            {
                "config": config.flat(),
                "folder": str(folder.absolute()),
                "local_data": [str(data.absolute()) for data in local_data],
            }
        )

    def fileno(self) -> int:
        """Return what can be read when the run is over, for `select.select`."""
        assert self._process is not None  # a run has begun
        return self._process.channel.fileno()

    def outcome(self) -> FclError | None:
        """Wait until the run is over; return why it has failed, None if it has not."""
        assert self._process is not None  # a run has begun
        answer = self._process.receive()
        if answer is None:
            self._end()
            log = self._folder / "flower.log"
            return RoundError(f"the run did not finish; the reason stands in {log}")
        if not answer:
            return None
        kind = ConfigError if answer["kind"] == "ConfigError" else RoundError
        return kind(answer["error"])

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _Process:
    """The process, under a guardian, and this end of the socket to it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        home = Path(tempfile.mkdtemp(prefix="fcl-flower-"))
        self.channel, its = socket.socketpair()
        env = {
            **environment(home),
            SIMULATION: "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # clients are the work, not a background chore
        }
        with its:
            command = [sys.executable, "-P", "-m", PROGRAM, str(its.fileno())]
            self.guardian: subprocess.Popen[bytes] = guarded(
                [*command, json.dumps(options)],
                env,
                keep_open=[its.fileno()],
                scratch=home,
            )
        self._answers = self.channel.makefile("r")

    def send(self, request: Mapping[str, Any]) -> None:
        """Ask for a run; that the process has died is found when it is to answer."""
        try:
            self.channel.sendall(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return

    def receive(self) -> dict[str, str] | None:
        """Wait for an answer; return None if the process has died instead."""
        try:
            line = self._answers.readline()
        except ConnectionResetError:
            return None
        found: dict[str, str] | None = json.loads(line) if line else None
        return found

    def end(self) -> None:
        release(self.guardian)
        self._answers.close()
        self.channel.close()
