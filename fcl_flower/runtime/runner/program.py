"""The program: it runs what it is asked for, one run after the other, until the end.

Requests and answers are lines of JSON on one socket, whose other end is that of
`fcl_flower.runtime.runner.handle`. What a run says goes to its ``flower.log``.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, FclError, RoundError
from fcl_flower.results.run_folder import close_folder, prepared_folder
from fcl_flower.setup import resolve

if TYPE_CHECKING:
    from fcl_flower.runtime.runner.kept_actors import KeptActors


class FlowerRuns:
    """Runs in Flower's simulation runtime, which is kept where that is sound."""

    def __init__(self, workers: int, gpus_per_client: float) -> None:
        """Prepare for runs; Ray is started for the first.

        Args:
            workers: clients that train at the same time, one CPU core each.
            gpus_per_client: share of a GPU that a client is given, 0 for none.
        """
        self._workers, self._gpus_per_client = workers, gpus_per_client
        self._actors: KeptActors | None = None

    def __call__(
        self, config: RunConfig, folder: Path, local_data: Sequence[Path] = ()
    ) -> None:
        """Run one configuration into its folder.

        Args:
            config: with a number of clients.
            folder: of the run.
            local_data: none.

        Raises:
            FclError: it is refused, or did not finish.
        """
        with prepared_folder(config, folder, resolve.data_root(config)) as prepared:
            log_file = folder / "flower.log"
            _speak_to(log_file)
            # Imported here as it takes seconds, and may speak.
            from fcl_flower.runtime.runner.kept_actors import KeptActors

            try:
                self._actors = self._actors or KeptActors(
                    self._workers, self._gpus_per_client
                )
                self._actors.run(prepared)
            except Exception as error:
                traceback.print_exc()
                raise RoundError(
                    f"the run did not finish; the reason stands in {log_file}"
                ) from error
            finally:
                self._let_go()
            close_folder(folder, keep_clients=config.run.keep_clients)

    def _let_go(self) -> None:
        """End the actors if one of them is dead or still at work."""
        if self._actors is not None and not self._actors.can_go_on:
            self._actors.close()
            self._actors = None


class InProcessRuns:
    """Runs in this process, or in a pool of processes for each."""

    def __init__(self, workers: int) -> None:
        """Prepare for runs, each of whose clients are in so many processes."""
        self._workers = workers

    def __call__(
        self, config: RunConfig, folder: Path, local_data: Sequence[Path]
    ) -> None:
        """Run one configuration into its folder; see `run_in_process`."""
        from fcl_flower.runtime.in_process.run import run_in_process

        run_in_process(config, folder, local_data=local_data, workers=self._workers)


def _speak_to(path: Path) -> None:
    """Let this process, and what it has started, write to a new file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


Run: TypeAlias = Callable[[RunConfig, Path, Sequence[Path]], None]


def _answer(run: Run, line: str) -> dict[str, str]:
    """Run what a line asks for; return the error, empty if there is none."""
    asked = json.loads(line)
    try:
        local_data = [Path(data) for data in asked["local_data"]]
        run(RunConfig.of(asked["config"]), Path(asked["folder"]), local_data)
    except FclError as error:
        kind = ConfigError if isinstance(error, ConfigError) else RoundError
        return {"error": str(error), "kind": kind.__name__}
    return {}


RUNS: Mapping[str, Callable[..., Run]] = {
    "flower": FlowerRuns,
    "in-process": InProcessRuns,
}


def _serve(channel: socket.socket, options: dict[str, Any]) -> None:
    run = RUNS[options.pop("backend")](**options)
    with channel.makefile("rw") as lines:
        for line in lines:
            lines.write(json.dumps(_answer(run, line)) + "\n")
            lines.flush()


if __name__ == "__main__":
    _channel = socket.socket(fileno=int(sys.argv[1]))
    _channel.set_inheritable(False)
    _serve(_channel, json.loads(sys.argv[2]))
