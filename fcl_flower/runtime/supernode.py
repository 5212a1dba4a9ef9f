"""A client of a federation: a SuperNode with its key, its data and its device."""

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fcl_flower.config.parsing import toml
from fcl_flower.core.errors import MESSAGE_FAILED, RoundError, refuse
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.connection import supernode_log
from fcl_flower.runtime.connection.server_probe import find_obstacle
from fcl_flower.runtime.connection.supernode_log import Event
from fcl_flower.runtime.flower_project import environment
from fcl_flower.runtime.lifetime.guardian import guarded, release
from fcl_flower.runtime.lifetime.state_lock import locked
from fcl_flower.runtime.processes import free_port, make_folder, program
from fcl_flower.runtime.resident.launch import mended, with_worker

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
) -> None:
    """Run one client of a federation until it is stopped.

    Where the server is not there, or does not let the client in yet, it is tried again
    and again; the reason is reported once.

    Args:
        server: HOST:PORT.
        certificates: with the authority of the server and this client's key; None
            without TLS, where clients are not authenticated.
        node: configuration for the client app: ``partition-id``, and what is given of
            ``data-path``, ``word-vectors`` and ``device``.
        state: folder for what a restart needs.
        more: arguments for flower-supernode.
        report: called with each line for the user.
        resident: one process answers all messages of a run, and keeps what it has
            loaded; or Flower starts one for each message.

    Raises:
        ConfigError: a file is missing, or the folder cannot be written, or another
            program works in it; or ``more`` leaves no place for a resident worker.
        RoundError: the server cannot be trusted, or the SuperNode ended by itself.
    """
    number = int(node["partition-id"])
    security = _security(certificates, number)
    # Of this name since the first version: a client finds its state again.
    states = (state / "memory").absolute()
    make_folder(state, "state", private=True)
    make_folder(states, "state")
    command = [
        program("flower-supernode"),
        *("--superlink", server),
        *security,
        *("--node-config", node_config({**node, "state-path": str(states)})),
        # Where its own client app reaches it: another for each client of a machine.
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *more,
    ]
    started = mended(command)
    if resident:
        started = with_worker(started)
    authority = certificates and certificates.authority
    env = environment(state / "flower")
    once = _Once(report)
    with locked(state, report) as lock:
        report(shlex.join(command))
        while True:
            _await_server(server, authority, once)
            supernode = guarded(started, env, subprocess.PIPE, keep_open=[lock])
            try:
                refused = _follow(supernode, server, authority, once)
            finally:
                release(supernode)
            if not refused and supernode.returncode:
                raise RoundError(
                    "the SuperNode ended by itself, with code "
                    f"{supernode.returncode}; the reason is above"
                )
            once(_not_let_in(server, number, certificates))
            time.sleep(RETRY_SECONDS)


def _await_server(
    server: str, authority: Path | None, report: Callable[[str], None]
) -> None:
    """Wait until a server is there.

    Raises:
        RoundError: there is one, but not ours.
    """
    while obstacle := find_obstacle(server, authority):
        if not obstacle.passes:
            raise RoundError(obstacle.sentence)
        report(f"{obstacle.sentence}; trying again every {RETRY_SECONDS:.0f} s")
        time.sleep(RETRY_SECONDS)


def _follow(
    supernode: subprocess.Popen[bytes],
    server: str,
    authority: Path | None,
    report: "_Once",
) -> bool:
    """Pass on the log of a SuperNode until it ends; return whether it was refused.

    What it says before the server has let it in is held back: of a refusal the caller
    has one sentence, which says more.
    """
    assert supernode.stdout is not None  # it is a pipe
    held, refused, let_in = list[str](), False, False
    failure = ""
    with supernode.stdout as log:
        for raw in log:
            line = raw.decode(errors="replace").rstrip()
            event = supernode_log.read(line)
            if event is Event.MEANT:  # by us: no news for the user
                continue
            refused = refused or event is Event.REFUSED
            if event is Event.CUT_OFF:  # Flower's line has no reason
                obstacle = find_obstacle(server, authority)
                if obstacle is not None:
                    report(f"{obstacle.sentence}; the client goes on when it is back")
                continue
            if event in (Event.LET_IN, Event.BACK):
                let_in = True
                report.forget()
            held.append(line)
            if let_in:
                _show(held)
                held = []
            if event is Event.FAILED:
                failure = line[line.index(MESSAGE_FAILED) :]
            if event is Event.ANSWERED and failure:  # which Flower has buried by now
                report.forget()
                report(f"{failure}; the client waits for the next message")
                failure = ""
    if not refused:
        _show(held)
    return refused


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _not_let_in(server: str, number: int, certificates: Certificates | None) -> str:
    if certificates is None:
        reason = "it takes clients with a key alone: give --certs"
    else:
        name = certificates.client_key(number).with_suffix(".pub").name
        reason = (
            f"either {name} of this key is not in its folder certs/clients, or a "
            "client with this key is connected, or was killed less than a minute ago"
        )
    return (
        f"the server at {server} does not let client {number} in: {reason}; trying "
        f"again every {RETRY_SECONDS:.0f} s"
    )


class _Once:
    """Reports a sentence when it is new."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last = ""

    def __call__(self, sentence: str) -> None:
        if sentence != self._last:
            self._last = sentence
            self._report(sentence)

    def forget(self) -> None:
        self._last = ""


def node_config(values: Mapping[str, int | str]) -> str:
    """Return the text of ``--node-config`` that Flower reads as these values.

    Flower cuts it at spaces and equals signs outside of quotes, knows no escaped quote
    while it does so, and reads each piece as TOML, which knows quotes by number.
    """
    return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())


def _quoted(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    return '"' + toml(value)[1:-1].replace('\\"', "\\u0022") + '"'


def _security(certificates: Certificates | None, number: int) -> list[str]:
    if certificates is None:
        return ["--insecure"]
    key = certificates.client_key(number)
    for path in (certificates.authority, key):
        if not path.is_file():
            name = path.relative_to(certificates.folder)
            expected = f"a folder with {name}, as fcl certs makes it"
            raise refuse("certs", str(certificates.folder), expected)
    try:
        load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        expected = "a private key that can be read, as fcl certs makes it"
        raise refuse("certs", str(key), expected) from error
    return [
        *("--root-certificates", str(certificates.authority)),
        *("--auth-supernode-private-key", str(key)),
    ]
