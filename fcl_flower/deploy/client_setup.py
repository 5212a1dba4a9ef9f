"""A client from its options: its key, its folders, the command of its SuperNode."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fcl_flower.core import processes
from fcl_flower.core.errors import config_error
from fcl_flower.deploy import commands
from fcl_flower.deploy.certificates import Certificates
from fcl_flower.deploy.client import Client


def set_up(
    server: str,
    certificates: Certificates | None,
    node: Mapping[str, int | str],
    state: Path,
    more: Sequence[str],
    *,
    speedups: Collection[str],
    log_file: Path | None = None,
) -> Client:
    """Check the files of a client of the server at HOST:PORT; make its folders.

    With the speed-up ``resident`` one process answers all messages of a run, and keeps
    its loaded modules. Otherwise Flower starts a process for each message.

    ``node`` configures the client app by ``partition-id`` and, where present, by
    ``data-path``, ``word-vectors`` and ``device``. ``more`` goes to flower-supernode.

    Raises:
        ConfigError: a file is missing, the folder cannot be written, or ``more``
            excludes a resident worker.
    """
    number = int(node["partition-id"])
    security = _security(certificates, number)
    # The name of the first version, by which a client finds its state again.
    states = (state / "memory").absolute()
    processes.make_folder(state, "state", private=True)
    processes.make_folder(states, "state")
    command = [
        commands.program("flower-supernode"),
        *("--superlink", server),
        *security,
        *("--node-config", commands.node_config({**node, "state-path": str(states)})),
        # The client app finds its SuperNode here, each client at another port.
        *("--host", "127.0.0.1", "--port", str(processes.free_port())),
        *more,
    ]
    reason = "it takes clients with a key alone: give --certs"
    if certificates is not None:
        name = certificates.client_key(number).with_suffix(".pub").name
        reason = (
            f"either {name} of this key is not in its folder certs/clients, "
            "or a client with this key is connected, or was killed less than a "
            "minute ago"
        )
    return Client(
        server,
        str(certificates.authority) if certificates else "",
        str(state.absolute()),
        command,
        commands.client_program(command, speedups),
        f"the server at {server} does not let client {number} in: {reason}",
        str(log_file.absolute()) if log_file else "",
    )


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
