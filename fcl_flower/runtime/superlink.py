"""The server of a federation: a SuperLink behind a reverse proxy."""

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core.errors import refuse
from fcl_flower.federation.transport.client_numbers import VARIABLE, ClientNumbers
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.flower_project import SUPERLINK, environment, write_superlink
from fcl_flower.runtime.processes import (
    await_port,
    lasting_process,
    make_folder,
    program,
)
from fcl_flower.runtime.reverse_proxy import ServerFiles, run_proxy

LOOK_SECONDS = 1.0

_REGISTERED = re.compile(r"SuperNode (\d+) registered")


class Addresses(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    control_port: int

    @property
    def control(self) -> str:
        """Where runs are started and keys registered, from this machine alone."""
        return f"127.0.0.1:{self.control_port}"


def run_superlink(
    certificates: Certificates | None,
    state: Path,
    addresses: Addresses,
    more: Sequence[str],
    report: Callable[[str], None],
) -> None:
    """Run the server of a federation until it is stopped.

    Args:
        certificates: of the server, with the public keys of the clients; None for a
            server without TLS, which any program may join as a client.
        state: folder for what a restart needs.
        addresses: where clients, and where runs come in.
        more: arguments for flower-superlink.
        report: called with each line for the user.

    Raises:
        ConfigError: a certificate is missing, the folder cannot be written, or the
            address is taken.
        RoundError: the SuperLink did not start, or ended by itself.
    """
    files = None if certificates is None else _server_files(certificates)
    home, numbers = state / "flower", (state / "client-numbers.json").absolute()
    make_folder(state, "state", private=True)
    write_superlink(home, addresses.control, certificates and certificates.authority)
    command = [
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(addresses.control_port)),
        *("--database", str((state / "superlink.db").absolute())),
        *_security(files),
        *more,
    ]
    env = {**environment(home), VARIABLE: str(numbers)}
    with (
        run_proxy(addresses.host, addresses.port, addresses.control, files),
        lasting_process("SuperLink", command, env, report) as superlink,
    ):
        await_port(superlink, addresses.control_port)
        report(
            f"clients reach this server at {addresses.host}:{addresses.port}, "
            f"fcl run at {addresses.control} from this machine"
        )
        _register_keys(superlink, certificates, home, ClientNumbers(numbers), report)


def _security(files: ServerFiles | None) -> list[str]:
    if files is None:
        return ["--insecure"]
    return [
        *("--ssl-ca-certfile", str(files.authority)),
        *("--ssl-certfile", str(files.certificate)),
        *("--ssl-keyfile", str(files.key)),
        "--enable-supernode-auth",
    ]


def _server_files(certificates: Certificates) -> ServerFiles:
    files = ServerFiles(
        certificates.authority, certificates.server, certificates.server_key
    )
    for path in files:
        if not path.is_file():
            expected = f"a folder with {path.name}, as fcl certs makes it"
            raise refuse("certs", str(certificates.folder), expected)
    return files


def _register_keys(
    superlink: subprocess.Popen[bytes],
    certificates: Certificates | None,
    home: Path,
    numbers: ClientNumbers,
    report: Callable[[str], None],
) -> None:
    """Register the public keys in the folder, and those added later, until the end."""
    seen: set[Path] = set()
    while superlink.poll() is None:
        if certificates is not None:
            keys = set(certificates.clients.glob("*.pub")) - seen
            for key in sorted(keys):
                report(_register(key, home, numbers))
            seen |= keys
        time.sleep(LOOK_SECONDS)


def _register(key: Path, home: Path, numbers: ClientNumbers) -> str:
    """Register a client's public key, under its number; return what came of it."""
    done = subprocess.run(
        [program("flwr"), "supernode", "register", str(key), SUPERLINK],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = " ".join((done.stdout + done.stderr).split())
    if done.returncode == 0 and (found := _REGISTERED.search(answer)):
        numbers.bind(int(found[1]), key)
        before = ""
    elif "already in use" in answer:
        before = " before"
    else:
        return f"could not register {key.name}: {answer}"
    bound = "" if numbers.has(key) else ", but for no client's number"
    return f"registered {key.name}{before}{bound}"
