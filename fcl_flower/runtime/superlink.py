"""The server of a federation: a SuperLink behind a reverse proxy."""

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core.errors import RoundError, refuse
from fcl_flower.federation.transport.client_numbers import VARIABLE, ClientNumbers
from fcl_flower.federation.transport.node_auth import NodeKeys, public_key
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.flower_project import SUPERLINK, environment, write_superlink
from fcl_flower.runtime.lifetime.state_lock import locked
from fcl_flower.runtime.processes import (
    await_port,
    lasting_process,
    make_folder,
    program,
)
from fcl_flower.runtime.reverse_proxy.bounds import Bounds, raise_descriptor_limit
from fcl_flower.runtime.reverse_proxy.server import (
    ServerFiles,
    listening,
    run_proxy,
)

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
        ConfigError: a certificate is missing, the folder cannot be written, another
            program works in it, or the address is taken.
        RoundError: the SuperLink did not start, or ended by itself.
    """
    files = None if certificates is None else _server_files(certificates)
    keys = None if certificates is None else NodeKeys()
    bounds = Bounds.of_descriptors(raise_descriptor_limit(), keys=keys is not None)
    home, path = state / "flower", (state / "client-numbers.json").absolute()
    numbers = ClientNumbers(path)
    make_folder(state, "state", private=True)
    write_superlink(home, addresses.control, certificates and certificates.authority)
    command = [
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(addresses.control_port)),
        *("--database", str((state / "superlink.db").absolute())),
        *_security(files),
        *more,
    ]
    env = {**environment(home), VARIABLE: str(path)}
    with (
        locked(state, report) as lock,
        listening(addresses.host, addresses.port, files) as listener,
        lasting_process(
            "SuperLink", command, env, report, keep_open=[lock]
        ) as superlink,
    ):
        await_port(superlink, addresses.control_port)
        # Within the context of the SuperLink: stopping that takes descriptors, which
        # there are again once the proxy has closed its connections.
        with run_proxy(listener, addresses.control, keys, bounds, report) as proxy:
            report(
                f"clients reach this server at {addresses.host}:{addresses.port}, "
                f"fcl run at {addresses.control} from this machine"
            )
            seen: dict[Path, bytes] = {}
            while superlink.poll() is None:
                if not proxy.is_alive():
                    raise RoundError("the reverse proxy ended by itself")
                if certificates is not None and keys is not None:
                    try:
                        seen = _look_at_keys(
                            certificates, keys, seen, home, numbers, report
                        )
                    except OSError as error:
                        report(f"could not read or register clients' keys: {error}")
                time.sleep(LOOK_SECONDS)


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


def _look_at_keys(
    certificates: Certificates,
    keys: NodeKeys,
    seen: Mapping[Path, bytes],
    home: Path,
    numbers: ClientNumbers,
    report: Callable[[str], None],
) -> dict[Path, bytes]:
    """Let in those whose public keys are in the folder now, and no others.

    Args:
        certificates: with the folder.
        keys: of those who are let in; changed.
        seen: files and what they held when they were looked at last.
        home: see `write_superlink`.
        numbers: which client each key speaks for; written.
        report: called with each line for the user.

    Returns:
        The files, and what they hold now.

    Raises:
        OSError: a file has gone meanwhile, or there are no descriptors left.
    """
    found = {p: p.read_bytes() for p in sorted(certificates.clients.glob("*.pub"))}
    if found == seen:
        return found
    known = {}
    for path, text in found.items():
        try:
            known[path.stem] = public_key(text)
        except ValueError as error:
            report(f"could not register {path.name}: {error}")
            continue
        if seen.get(path) != text:
            report(_register(path, home, numbers))
    for path in seen.keys() - found.keys():
        report(f"{path.name} is gone: its client is not let in any more")
    keys.replace(known)
    return found


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
