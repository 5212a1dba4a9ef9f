"""A run in a federation that is up: submit it, show its log, stop it if asked."""

import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fcl_flower import __version__
from fcl_flower.config.run_config import RunConfig, refuse_attack
from fcl_flower.core.errors import RoundError
from fcl_flower.flower.commands import (
    COMPLETED,
    STARTED_RUN,
    SUPERLINK,
    environment,
    flwr,
    program,
    write_superlink,
)
from fcl_flower.runtime.processes import (
    Progress,
    follow,
    start_guarded,
    stop_guarded,
)

OURS = "fcl_flower.federation.server_app:app", "fcl_flower.federation.client_app:app"


def write_app(folder: Path, config: RunConfig, apps: tuple[str, str] = OURS) -> None:
    """Make a new folder a Flower app that runs ``config``.

    It holds no code: every machine runs the apps of the server and of the clients, each
    given as module:name, that are installed there.

    Raises:
        ConfigError: the run has hostile clients.
    """
    refuse_attack(config)
    folder.mkdir(parents=True)
    server, client = apps
    settings = config.to_toml("tool.flwr.app.config.")
    (folder / "pyproject.toml").write_text(f"""[project]
name = "fcl-run"
version = "{__version__}"
description = "One run of fcl-flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fcl"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"

{settings}""")


_REASON = re.compile(r"fcl_flower\.core\.errors\.\w+Error: (.+)")
"""The last line of a traceback that the server's app ends with."""


class SuperLink:
    """Flower's own commands, for one SuperLink."""

    def __init__(self, address: str, root_certificate: Path | None) -> None:
        """Prepare to talk to what starts runs at HOST:PORT; without TLS by no proof."""
        self._address = address
        self._root_certificate = root_certificate

    def connected(self) -> int:
        """Count the clients that are connected now.

        Raises:
            RoundError: the SuperLink does not answer.
        """
        nodes = self._ask("supernode", "list")["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def run(
        self,
        config: RunConfig,
        *,
        report: Callable[[str], None],
        watch: Callable[[Progress], None],
    ) -> None:
        """Run ``config`` to its end.

        Args:
            config: with a number of clients and an absolute ``output``.
            report: called with each line of the run's log and for the user.
            watch: called with the contents of ``progress.json`` when they change,
                where the output folder is on this machine.

        Raises:
            RoundError: the run could not be started, or did not finish.
        """
        started, reason = "", "the reason stands above"

        def read() -> None:
            nonlocal started, reason
            assert process.stdout is not None  # it is a pipe
            with process.stdout as log:
                for line in log:
                    text = line.decode(errors="replace").rstrip()
                    report(text)
                    if found := STARTED_RUN.search(text):
                        started = started or found[1]
                    if found := _REASON.match(text):
                        reason = found[1]

        with self._home() as home:
            app = home / "app"
            write_app(app, config)
            command = [program("flwr"), "run", str(app), SUPERLINK, "--stream"]
            report(shlex.join(command))
            # The guardian clears the folder where this process is killed.
            process = start_guarded(
                command, environment(home / "flower"), subprocess.PIPE, scratch=home
            )
            reader = threading.Thread(target=read)
            reader.start()
            try:
                follow(process, Path(config.run.output) / "progress.json", watch)
                process.wait()
            except BaseException:  # an interrupt above all
                if started:
                    report(f"stopping run {started}")
                    with suppress(RoundError):  # it may have ended by itself
                        self._ask("stop", started)
                raise
            finally:
                stop_guarded(process)
                reader.join()
        if not started:
            raise RoundError("the run could not be started; the reason is above")
        (run,) = self._ask("list", "--run-id", started)["runs"]
        if run["status"] != COMPLETED:
            raise RoundError(
                f"the run did not finish, but ended as {run['status']}: {reason}"
            )

    def _ask(self, *arguments: str) -> dict[str, Any]:
        try:
            with self._home() as home:
                return flwr(home / "flower", *arguments)
        except RoundError as error:
            raise RoundError(
                f"the server at {self._address} does not answer as expected: {error}"
            ) from error

    @contextmanager
    def _home(self) -> Iterator[Path]:
        """Make a folder that tells Flower's commands where the SuperLink is."""
        with tempfile.TemporaryDirectory(prefix="fcl-run-") as folder:
            home = Path(folder) / "flower"
            write_superlink(home, self._address, self._root_certificate)
            yield Path(folder)
