"""The process beside a client's SuperNode: it starts that, and says what fails.

The process runs for months on small devices, and imports little.
"""

import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from fcl_flower.core import processes
from fcl_flower.core.errors import MESSAGE_FAILED, ConfigError, FclError, RoundError
from fcl_flower.deploy import commands
from fcl_flower.deploy.commands import SuperNodeEvent
from fcl_flower.deploy.diagnosis import diagnose_server
from fcl_flower.deploy.logs import Log, Tail, on_screen
from fcl_flower.flower_app.environment import environment

RETRY_SECONDS = 10.0


class Client(NamedTuple):
    """One client of a federation, ready to run."""

    server: str
    """HOST:PORT."""
    authority: str
    """File of the authority's certificate; empty without TLS."""
    state: str
    """Folder of the state that a restart needs."""
    command: Sequence[str]
    """flower-supernode with its options, as shown."""
    started: Sequence[str]
    """The same command with speed-ups."""
    refusal: str
    """The sentence for a server that does not let the client in."""
    log_file: str
    """File that also gets all lines; empty for none."""


def become(client: Client) -> NoReturn:
    """Run a client in place of this process.

    The new program has nothing of the modules that the command line has loaded, as it
    waits for months beside the SuperNode.
    """
    env = environment(Path(client.state) / "flower")
    words = [sys.executable, "-P", "-m", __name__, json.dumps(client)]
    sys.stdout.flush()
    os.execve(sys.executable, words, env)


def run_supernode(
    client: Client,
    report: Callable[[str], None],
    show: Callable[[str], None] = on_screen,
) -> None:
    """Run one client of a federation until it is stopped.

    Where the server is away, or does not let the client in yet, the client tries again
    and again, and reports the reason once. ``report`` gets lines for the user, and
    ``show`` those of Flower's programs.

    Raises:
        ConfigError: another program works in the folder of its state.
        RoundError: the server cannot be trusted, or the SuperNode ended by itself.
    """
    server, state = client.server, Path(client.state)
    authority = Path(client.authority) if client.authority else None
    env = environment(state / "flower")
    again = f"trying again every {RETRY_SECONDS:.0f} s"
    once = _Once(report)
    with processes.lock_states(state, report) as lock:
        report(shlex.join(client.command))
        while True:
            while obstacle := diagnose_server(server, authority):
                if not obstacle.passes:
                    raise RoundError(obstacle.sentence)
                once(f"{obstacle.sentence}; {again}")
                time.sleep(RETRY_SECONDS)
            supernode = processes.start_guarded(
                client.started, env, subprocess.PIPE, keep_open=[lock]
            )
            log = _SuperNodeLog(server, authority, once, show)
            try:
                log.follow(supernode)
            finally:
                processes.stop_guarded(supernode)
            if diagnose_server(server, authority):
                continue  # which says what it is
            if not log.refused and supernode.returncode:
                raise RoundError(
                    "the SuperNode ended by itself, with code "
                    f"{supernode.returncode}; its last lines: {log.tail}"
                )
            once(f"{client.refusal}; {again}")
            time.sleep(RETRY_SECONDS)


class _Once:
    """Reports a sentence that differs from the last one."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._last = report, ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            self._report(sentence)
        self._last = sentence

    def forget(self) -> None:
        self._last = ""


class _SuperNodeLog:
    """Passes on the log of a SuperNode, with sentences about its failures.

    It holds back the lines before the server lets the SuperNode in: the caller has a
    sentence about a refusal, which says more.
    """

    def __init__(
        self,
        server: str,
        authority: Path | None,
        report: _Once,
        show: Callable[[str], None],
    ) -> None:
        self._server, self._authority = server, authority
        self._report, self._show = report, show
        self._held, self._let_in = list[str](), False
        self._failure = self._cut = ""
        self.refused, self.tail = False, Tail()

    def follow(self, supernode: subprocess.Popen[bytes]) -> None:
        """Read the log to its end."""
        assert supernode.stdout is not None  # it is a pipe
        with supernode.stdout as log:
            for raw in log:
                self._read(raw.decode(errors="replace").rstrip())
        if not self.refused:
            self._show_held()

    def _read(self, line: str) -> None:
        self.tail.add(line)
        event = commands.read_supernode_log(line)
        if (
            event is SuperNodeEvent.EXPECTED_NOTICE
        ):  # the program asks for it: no news for the user
            return
        if event is SuperNodeEvent.CUT_OFF:  # Flower's line has no reason
            self._say_why_cut()
            return
        self.refused = self.refused or event is SuperNodeEvent.REFUSED
        if event in (SuperNodeEvent.LET_IN, SuperNodeEvent.BACK):
            self._let_in, self._cut = True, ""
            self._report.forget()
        self._held.append(line)
        if self._let_in:
            self._show_held()
        if event is SuperNodeEvent.FAILED:
            self._failure = line[line.index(MESSAGE_FAILED) :]
        if event is SuperNodeEvent.ANSWERED and self._failure:
            # Flower has buried it by now.
            self._report.forget()
            self._report(f"{self._failure}; the client waits for the next message")
            self._failure = ""

    def _say_why_cut(self) -> None:
        if self._let_in and not self._cut:
            since = datetime.datetime.now().astimezone()
            self._cut = f"the link to the server at {self._server} is cut since "
            self._cut += f"{since:%H:%M:%S}: "
        if obstacle := diagnose_server(self._server, self._authority):
            # The address was right before: the remedy would mislead.
            why = self._cut + obstacle.cause if self._cut else obstacle.sentence
            self._report(f"{why}; the client goes on when it is back")

    def _show_held(self) -> None:
        for line in self._held:
            self._show(line)
        self._held.clear()


# ---- the program


def _main(words: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    client = Client(*json.loads(words))
    log = Log(Path(client.log_file) if client.log_file else None)
    try:
        run_supernode(client, log.say, log.pass_on)
    except KeyboardInterrupt:
        log.say_how_to_go_on("--state")
        sys.exit(130)
    except ConfigError as error:  # a wrong option is no line of a log yet
        print(f"fcl: {error}", file=sys.stderr)
        sys.exit(2)
    except FclError as error:
        log.pass_on(f"fcl: {error}", sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    _main(sys.argv[1])
