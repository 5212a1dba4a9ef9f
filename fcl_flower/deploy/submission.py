"""A run in a federation that is up: submit it, show its log, stop it if asked."""

import math
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fcl_flower import __version__
from fcl_flower.config.run_config import RunConfig, refuse_attack
from fcl_flower.core import processes
from fcl_flower.core.errors import BEGINS, WAITING, RoundError
from fcl_flower.core.processes import Progress, ProgressFile
from fcl_flower.deploy import commands
from fcl_flower.deploy.logs import without_colours
from fcl_flower.flower_app.environment import environment

NO_REASON = (
    "its log has no reason, so that a process of the server was ended from outside; the"
    " log of fcl server names it, with its exit status"
)
SERVER_APP = "fcl_flower.flower_app.server_app:app"
CLIENT_APP = "fcl_flower.flower_app.client_app:app"


def write_app(folder: Path, config: RunConfig, server_app: str = SERVER_APP) -> None:
    """Make a new folder a Flower app that runs ``config``.

    The app holds no code: every machine runs the installed apps of the server and of
    the clients.

    Raises:
        ConfigError: the run has hostile clients.
    """
    refuse_attack(config)
    folder.mkdir(parents=True)
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
serverapp = "{server_app}"
clientapp = "{CLIENT_APP}"

{settings}""")


_REASON = re.compile(
    r"(?:fcl_flower\.core\.errors\.\w+Error: )(?P<ours>.+)"
    r"|(?P<other>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .+)?)$"
)
"""The last line of a traceback that the server's app ends with."""


class RunLostError(RoundError):
    """A run ended as a process of the server did, without a word of its own."""


class SuperLink:
    """Flower's own commands, for one SuperLink."""

    def __init__(self, address: str, root_certificate: Path | None) -> None:
        """Prepare to talk to the SuperLink at HOST:PORT, without TLS to any program."""
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
        watch: Callable[[Progress], None] = lambda progress: None,
        on_start: Callable[[str], None] = lambda run: None,
        server_app: str = SERVER_APP,
        start_seconds: float = 0.0,
    ) -> None:
        """Run ``config``, with a number of clients and an absolute ``output``.

        Args:
            config: of the run.
            report: called with each line of the run's log, and for the user.
            watch: called with each change of ``progress.json``, where the output folder
                is on this machine.
            on_start: called with Flower's number of the run once it is there.
            server_app: as module:name.
            start_seconds: after which a run that has not begun is stopped; 0 for never.

        Raises:
            RunLostError: a process of the server was ended from outside.
            RoundError: the run could not be started, or did not finish.
        """
        heard: dict[str, str] = {}
        deadline = time.monotonic() + (start_seconds or math.inf)
        with self._home() as home:
            app = home / "app"
            write_app(app, config, server_app)
            flwr = commands.program("flwr")
            command = [flwr, "run", str(app), commands.SUPERLINK, "--stream"]
            report(shlex.join(command))
            # The guardian clears the folder where this process is killed.
            env = environment(home / "flower")
            process = processes.start_guarded(
                command, env, subprocess.PIPE, scratch=home
            )
            progress = ProgressFile(Path(config.run.output))
            given = process, report, on_start, heard
            reader = threading.Thread(target=_read, args=given)
            reader.start()
            try:
                ended = False
                while not ended:
                    ended = process.poll() is not None
                    if now := progress.news():
                        watch(now)
                    if "begins" not in heard and time.monotonic() > deadline:
                        raise RoundError(
                            f"the run has not begun in {start_seconds:.0f} s: "
                            f"{self._awaited(heard)}"
                        )
                    time.sleep(0.0 if ended else processes.POLL_SECONDS)
            except BaseException:  # an interrupt above all
                if "run" in heard:
                    self.stop(heard["run"], report)
                raise
            finally:
                processes.stop_guarded(process)
                reader.join()
        if "run" not in heard:
            last = heard.get("last", "flwr run said nothing")
            raise RoundError(f"the run could not be started: {last}")
        status = self._status(heard)
        if status != commands.COMPLETED:
            how = f"the run did not finish, but ended as {status}: "
            if status == commands.FAILED and "reason" not in heard:
                raise RunLostError(how + NO_REASON)
            raise RoundError(how + heard.get("reason", "its log has no reason"))

    def see_through(
        self,
        config: RunConfig,
        restarts: int,
        *,
        report: Callable[[str], None],
        **more: Any,  # noqa: ANN401 - what `run` takes
    ) -> None:
        """Run ``config``, and go on where a process of the server was ended.

        Args:
            config: as of `run`.
            restarts: times that the run goes on.
            report: as of `run`.
            more: the other arguments of `run`.
        """
        for left in range(restarts, -1, -1):
            try:
                self.run(config, report=report, **more)
                break
            except RunLostError as error:
                if not left:
                    raise
                report(f"{error}; it goes on by itself")
                config = config.replace(resume=True)

    def _status(self, heard: Mapping[str, str]) -> str:
        (run,) = self._ask("list", "--run-id", heard["run"])["runs"]
        return str(run["status"])

    def _awaited(self, heard: Mapping[str, str]) -> str:
        """Say what a run that has not begun waits for."""
        if "run" not in heard:
            return f"the server at {self._address} has not taken it"
        if "waits" in heard:
            return heard["waits"]
        return (
            f"its server app has not begun, and is {self._status(heard)}; the log of "
            "fcl server says why"
        )

    def stop(self, run: str, report: Callable[[str], None]) -> None:
        """Stop a run, if it has not ended by itself."""
        report(f"stopping run {run}")
        with suppress(RoundError):
            self._ask("stop", run)

    def _ask(self, *arguments: str) -> dict[str, Any]:
        try:
            with self._home() as home:
                return commands.flwr(home / "flower", *arguments)
        except RoundError as error:
            said = f"does not answer as expected: {error}"
            if commands.UNREACHED in str(error):
                said = "cannot be reached now: see that fcl server runs"
            raise RoundError(f"the server at {self._address} {said}") from error

    @contextmanager
    def _home(self) -> Iterator[Path]:
        """Make a folder that tells Flower's commands where the SuperLink is."""
        with tempfile.TemporaryDirectory(prefix="fcl-run-") as folder:
            home = Path(folder) / "flower"
            commands.write_superlink(home, self._address, self._root_certificate)
            yield Path(folder)


def _read(
    process: subprocess.Popen[bytes],
    report: Callable[[str], None],
    on_start: Callable[[str], None],
    heard: dict[str, str],
) -> None:
    assert process.stdout is not None  # it is a pipe
    with process.stdout as log:
        for line in log:
            text = line.decode(errors="replace").rstrip()
            report(text)
            text = without_colours(text)
            found = commands.STARTED_RUN.search(text)
            if found and "run" not in heard:
                heard["run"] = found[1]
                on_start(found[1])
            if found := _REASON.match(text):
                heard["reason"] = found["ours"] or found["other"]
            if WAITING in text:
                heard["waits"] = text[text.index(WAITING) :]
            if BEGINS in text:
                heard["begins"] = text
            if text.strip():
                heard["last"] = text.strip()
