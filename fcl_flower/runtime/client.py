"""A client of a federation: a SuperNode with its key, its data and its device."""

import http.client
import shlex
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fcl_flower.core.errors import MESSAGE_FAILED, RoundError, config_error
from fcl_flower.flower import commands
from fcl_flower.flower.commands import SuperNodeEvent
from fcl_flower.runtime import processes
from fcl_flower.runtime.certificates import Certificates

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

    Where the server, HOST:PORT, is not there, or does not let the client in yet, it is
    tried again and again; the reason is reported once. A resident client has one
    process that answers all messages of a run, and keeps what it has loaded; otherwise
    Flower starts one for each message.

    ``node`` configures the client app: ``partition-id``, and what is given of
    ``data-path``, ``word-vectors`` and ``device``. ``more`` goes to flower-supernode.

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
            try:
                refused = _follow(supernode, server, authority, once)
            finally:
                processes.stop_guarded(supernode)
            if not refused and supernode.returncode:
                raise RoundError(
                    "the SuperNode ended by itself, with code "
                    f"{supernode.returncode}; the reason is above"
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


def _follow(
    supernode: subprocess.Popen[bytes],
    server: str,
    authority: Path | None,
    report: _Once,
) -> bool:
    """Pass on the log of a SuperNode until it ends; tell whether it was refused.

    What it says before the server has let it in is held back: of a refusal the caller
    has one sentence, which says more.
    """
    assert supernode.stdout is not None  # it is a pipe
    held, refused, let_in = list[str](), False, False
    failure = ""
    with supernode.stdout as log:
        for raw in log:
            line = raw.decode(errors="replace").rstrip()
            event = commands.read_supernode_log(line)
            if event is SuperNodeEvent.EXPECTED_NOTICE:  # by us: no news for the user
                continue
            if event is SuperNodeEvent.CUT_OFF:  # Flower's line has no reason
                if obstacle := diagnose_server(server, authority):
                    report(f"{obstacle.sentence}; the client goes on when it is back")
                continue
            refused = refused or event is SuperNodeEvent.REFUSED
            if event in (SuperNodeEvent.LET_IN, SuperNodeEvent.BACK):
                let_in = True
                report.forget()
            held.append(line)
            if let_in:
                _show(held)
            if event is SuperNodeEvent.FAILED:
                failure = line[line.index(MESSAGE_FAILED) :]
            if event is SuperNodeEvent.ANSWERED and failure:
                # Flower has buried it by now.
                report.forget()
                report(f"{failure}; the client waits for the next message")
                failure = ""
    if not refused:
        _show(held)
    return refused


def _show(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)
    lines.clear()


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


# ---- what stands in the way

PROBE_SECONDS = 5.0

_NOT_FOR_THIS_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED


class Obstacle(NamedTuple):
    """What stands between this machine and a server, and what to do about it."""

    sentence: str
    passes: bool
    """It may go by itself, so that trying again makes sense."""


def diagnose_server(
    server: str, authority: Path | None, place: str = ""
) -> Obstacle | None:
    """Find out why a server, HOST:PORT, cannot be used from here; None if it can.

    Its certificate is checked with the authority's; None without TLS. A ``place`` is
    the path of a call that is to be answered there, too.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    connection = http.client.HTTPConnection(host, int(port), timeout=PROBE_SECONDS)
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=authority)
        except ssl.SSLError:
            return Obstacle(f"{authority} is no certificate: copy the server's", False)
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=PROBE_SECONDS, context=context
        )
    try:
        status = _status(connection, "/health")
        # Of a place that there is, another method is refused, and nothing done.
        missing = status == 200 and place and _status(connection, place) == 404
    except (OSError, http.client.HTTPException) as error:
        return _obstacle(error, server, host, authority)
    finally:
        connection.close()
    if missing:
        return Obstacle(
            f"at {server} clients come in, and no runs: give --server the "
            "--control-port of fcl server",
            False,
        )
    if status == 200:
        return None
    if status >= 500:
        return Obstacle(
            f"the server at {server} is there, but not ready (HTTP status {status}): "
            "its own log says why, if it stays so",
            True,
        )
    return Obstacle(
        f"what listens at {server} is no fcl server (HTTP status {status}): correct "
        "--server",
        False,
    )


def _status(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


def _obstacle(
    error: Exception, server: str, host: str, authority: Path | None
) -> Obstacle:
    """Say what an error means; all may pass but a certificate that is not trusted."""
    certified = f"the certificate of the server at {server}"
    match error:
        case ssl.SSLCertVerificationError() if error.verify_code in _NOT_FOR_THIS_NAME:
            sentence = (
                f"{certified} is not for {host!r}: use a name that it is for, or make "
                f"another with fcl certs --host {host}"
            )
        case ssl.SSLCertVerificationError() if error.verify_code == _EXPIRED:
            sentence = (
                f"{certified} has expired: delete its server.crt and make another with "
                "fcl certs --host"
            )
        case ssl.SSLCertVerificationError():
            sentence = (
                f"the server at {server} has a certificate of another authority than "
                f"{authority}, or is an impostor: copy ca.crt from the server's folder "
                "of certificates"
            )
        case socket.gaierror():
            sentence = f"no machine is known as {host!r}: correct --server"
        case ConnectionRefusedError():
            sentence = (
                f"no program listens at {server}: start fcl server there, or correct "
                "--server"
            )
        case TimeoutError():
            sentence = (
                f"nothing answers at {server}: correct --server, or open the port in "
                "the firewall"
            )
        case ssl.SSLError() | http.client.HTTPException() | ConnectionResetError():
            spoken = "TLS" if authority else "HTTP without TLS"
            sentence = (
                f"what listens at {server} does not speak {spoken}: correct --server, "
                f"or give {'--insecure' if authority else '--certs'} if the server was "
                "started so"
            )
        case _:
            sentence = f"{server} cannot be reached: {error}: correct --server"
    return Obstacle(sentence, not isinstance(error, ssl.SSLCertVerificationError))
