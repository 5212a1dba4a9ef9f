"""A client of a federation: a SuperNode with its key, its data and its device."""

import datetime
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fcl_flower.core.errors import MESSAGE_FAILED, RoundError, config_error
from fcl_flower.flower import commands
from fcl_flower.flower.commands import SuperNodeEvent
from fcl_flower.runtime import processes
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.diagnosis import diagnose_server
from fcl_flower.runtime.logs import Tail, on_screen

RETRY_SECONDS = 10.0


def run_supernode(
    server: str,
    certificates: Certificates | None,
    node: Mapping[str, int | str],
    state: Path,
    more: Sequence[str],
    report: Callable[[str], None],
    *,
    resident: bool,
    show: Callable[[str], None] = on_screen,
) -> None:
    """Run one client of a federation until it is stopped.

    Where the server, HOST:PORT, is not there, or does not let the client in yet, it is
    tried again and again; the reason is reported once. A resident client has one
    process that answers all messages of a run, and keeps what it has loaded; otherwise
    Flower starts one for each message.

    ``node`` configures the client app: ``partition-id``, and what is given of
    ``data-path``, ``word-vectors`` and ``device``. ``more`` goes to flower-supernode.
    Lines for the user are reported, and those of Flower's programs shown.

    Raises:
        ConfigError: a file is missing, or the folder cannot be written, or another
            program works in it; or ``more`` leaves no place for a resident worker.
        RoundError: the server cannot be trusted, or the SuperNode ended by itself.
    """
    number = int(node["partition-id"])
    security = _security(certificates, number)
    # Of this name since the first version: a client finds its state again.
    states = (state / "memory").absolute()
    processes.make_folder(state, "state", private=True)
    processes.make_folder(states, "state")
    command = [
        commands.program("flower-supernode"),
        *("--superlink", server),
        *security,
        *("--node-config", commands.node_config({**node, "state-path": str(states)})),
        # Where its own client app reaches it: another for each client of a machine.
        *("--host", "127.0.0.1", "--port", str(processes.free_port())),
        *more,
    ]
    started = commands.with_stopped_run_fix(command)
    if resident:
        started = commands.with_worker(started)
    authority = certificates and certificates.authority
    env = commands.environment(state / "flower")
    again = f"trying again every {RETRY_SECONDS:.0f} s"
    once = _Once(report)
    with processes.lock_states(state, report) as lock:
        report(shlex.join(command))
        while True:
            while obstacle := diagnose_server(server, authority):
                if not obstacle.passes:
                    raise RoundError(obstacle.sentence)
                once(f"{obstacle.sentence}; {again}")
                time.sleep(RETRY_SECONDS)
            supernode = processes.start_guarded(
                started, env, subprocess.PIPE, keep_open=[lock]
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
            reason = "it takes clients with a key alone: give --certs"
            if certificates is not None:
                name = certificates.client_key(number).with_suffix(".pub").name
                reason = (
                    f"either {name} of this key is not in its folder certs/clients, "
                    "or a client with this key is connected, or was killed less than a "
                    "minute ago"
                )
            let_in = f"the server at {server} does not let client {number} in"
            once(f"{let_in}: {reason}; {again}")
            time.sleep(RETRY_SECONDS)


class _Once:
    """Reports a sentence when it is new."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report, self._last = report, ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            self._report(sentence)
        self._last = sentence

    def forget(self) -> None:
        self._last = ""


class _SuperNodeLog:
    """Passes on the log of a SuperNode, and what is to be said of it.

    What it says before the server has let it in is held back: of a refusal the caller
    has one sentence, which says more.
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
        """Read it to its end."""
        assert supernode.stdout is not None  # it is a pipe
        with supernode.stdout as log:
            for raw in log:
                self._read(raw.decode(errors="replace").rstrip())
        if not self.refused:
            self._show_held()

    def _read(self, line: str) -> None:
        self.tail.add(line)
        event = commands.read_supernode_log(line)
        if event is SuperNodeEvent.EXPECTED_NOTICE:  # by us: no news for the user
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
            # It was right before, so that nobody has to correct it.
            why = self._cut + obstacle.cause if self._cut else obstacle.sentence
            self._report(f"{why}; the client goes on when it is back")

    def _show_held(self) -> None:
        for line in self._held:
            self._show(line)
        self._held.clear()


def _security(certificates: Certificates | None, number: int) -> list[str]:
    if certificates is None:
        return ["--insecure"]
    key = certificates.client_key(number)
    certificates.require(certificates.authority, key)
    try:
        load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        expected = "a private key that can be read, as fcl certs makes it"
        raise config_error("certs", str(key), expected) from error
    return [
        *("--root-certificates", str(certificates.authority)),
        *("--auth-supernode-private-key", str(key)),
    ]
