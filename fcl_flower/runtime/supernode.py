"""A client of a federation: a SuperNode with its key, its data and its device."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fcl_flower.config.parsing import toml
from fcl_flower.core.errors import refuse
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.flower_project import environment
from fcl_flower.runtime.processes import (
    free_port,
    lasting_process,
    make_folder,
    program,
)


def run_supernode(
    server: str,
    certificates: Certificates | None,
    node: Mapping[str, int | str],
    state: Path,
    more: Sequence[str],
    report: Callable[[str], None],
) -> None:
    """Run one client of a federation until it is stopped.

    Args:
        server: HOST:PORT.
        certificates: with the authority of the server and this client's key; None
            without TLS, where clients are not authenticated.
        node: configuration for the client app: ``partition-id``, and what is given of
            ``data-path``, ``word-vectors`` and ``device``.
        state: folder for what a restart needs.
        more: arguments for flower-supernode.
        report: called with each line for the user.

    Raises:
        ConfigError: a file is missing, or the folder cannot be written.
        RoundError: the SuperNode ended by itself, such as one whose key the server
            does not know.
    """
    security = _security(certificates, int(node["partition-id"]))
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
    hint = (
        "; of one whose key the server does not know the log says 'Failed to activate "
        "SuperNode'"
    )
    env = environment(state / "flower")
    with lasting_process("SuperNode", command, env, report, hint=hint) as supernode:
        supernode.wait()


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
    return [
        *("--root-certificates", str(certificates.authority)),
        *("--auth-supernode-private-key", str(key)),
    ]
