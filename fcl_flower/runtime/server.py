"""The server of a federation: a SuperLink behind a reverse proxy."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core.errors import RoundError
from fcl_flower.federation.clients import VARIABLE, ClientNumbers
from fcl_flower.flower.commands import (
    KEY_IN_USE,
    SUPERLINK,
    environment,
    flwr,
    program,
    write_superlink,
)
from fcl_flower.flower.node_auth import NodeKeys, public_key
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.http import Bounds, raise_descriptor_limit
from fcl_flower.runtime.processes import (
    await_port,
    lasting_process,
    lock_states,
    make_folder,
    refuse_used_port,
)
from fcl_flower.runtime.proxy import listening, run_proxy

LOOK_SECONDS = 1.0


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
    security, keys = ["--insecure"], None
    if certificates is not None:
        files = certificates.authority, certificates.server, certificates.server_key
        certificates.require(*files)
        options = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
        named = zip(options, map(str, files), strict=True)
        security = [*(word for pair in named for word in pair)]
        security.append("--enable-supernode-auth")
        keys = NodeKeys()
    bounds = Bounds.of_descriptors(raise_descriptor_limit(), keys=keys is not None)
    home, path = state / "flower", (state / "client-numbers.json").absolute()
    numbers = ClientNumbers(path)
    make_folder(state, "state", private=True)
    write_superlink(home, addresses.control, certificates and certificates.authority)
    command = [
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(addresses.control_port)),
        *("--database", str((state / "superlink.db").absolute())),
        *security,
        *more,
    ]
    env = {**environment(home), VARIABLE: str(path)}
    with lock_states(state, report) as lock:
        # What listens there already would be taken for our SuperLink.
        refuse_used_port(addresses.control_port, "control-port")
        with (
            listening(addresses.host, addresses.port, certificates) as listener,
            lasting_process(
                "SuperLink", command, env, report, keep_open=[lock]
            ) as superlink,
        ):
            await_port(superlink, addresses.control_port)
            # Before the proxy runs: a client that is not let in goes for good.
            folder, new = None, list[Path]()
            if certificates and keys:
                folder = _KeyFolder(certificates.clients, keys, report)
                new = folder.look()
            # Within the context of the SuperLink: stopping that takes descriptors,
            # which there are again once the proxy has closed its connections.
            with run_proxy(listener, addresses.control, keys, bounds, report) as proxy:
                report(
                    f"clients reach this server at {addresses.host}:{addresses.port}, "
                    f"fcl run at {addresses.control} from this machine"
                )
                while superlink.poll() is None:
                    if not proxy.is_alive():
                        raise RoundError("the reverse proxy ended by itself")
                    try:
                        while new:
                            report(_register(new[0], home, numbers))
                            del new[0]
                        new = folder.look() if folder else []
                    except OSError as error:
                        report(f"could not read or register clients' keys: {error}")
                    time.sleep(LOOK_SECONDS)


class _KeyFolder:
    """Clients' public keys in a folder: those that are in it now are let in."""

    def __init__(
        self, folder: Path, keys: NodeKeys, report: Callable[[str], None]
    ) -> None:
        self._folder, self._keys, self._report = folder, keys, report
        self._seen: dict[Path, bytes] = {}

    def look(self) -> list[Path]:
        """Let in whose keys are there now, no others; list the files that are new.

        Raises:
            OSError: a file has gone meanwhile, or there are no descriptors left.
        """
        found = {p: p.read_bytes() for p in sorted(self._folder.glob("*.pub"))}
        if found == self._seen:
            return []
        new, known = list[Path](), {}
        for path in sorted(self._seen.keys() - found.keys()):
            self._report(f"{path.name} is gone: its client is not let in any more")
        for path, text in found.items():
            changed = self._seen.get(path) != text
            try:
                known[path.stem] = public_key(text)
                new += [path] if changed else []
            except ValueError as error:
                if changed:
                    self._report(f"could not register {path.name}: {error}")
        self._keys.replace(known)
        self._seen = found
        return new


def _register(key: Path, home: Path, numbers: ClientNumbers) -> str:
    """Register a client's public key, under its number; tell what came of it."""
    before = ""
    try:
        found = flwr(home, "supernode", "register", str(key), SUPERLINK)
        numbers.bind(int(found["node-id"]), key)
    except RoundError as error:
        if KEY_IN_USE not in str(error):
            return f"could not register {key.name}: {error}"
        before = " before"
    bound = "" if numbers.has(key) else ", but for no client's number"
    return f"registered {key.name}{before}{bound}"
