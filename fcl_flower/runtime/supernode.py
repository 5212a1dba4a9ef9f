"""A client of a federation: Flower's SuperNode, with its key and what is its own."""

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fcl_flower.config.parsing import toml
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.flower_project import environment
from fcl_flower.runtime.processes import free_port, program, stop


def run_supernode(
    server: str,
    certificates: Certificates | None,
    node: Mapping[str, int | str],
    state: Path,
    more: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Run one client of a federation until it is told to end.

    Args:
        server: HOST:PORT.
        certificates: with the authority of the server and this client's key; None
            without TLS, where nobody proves who he is.
        node: what the client app is to know: ``partition-id``, and what is given of
            ``data-path``, ``word-vectors`` and ``device``.
        state: folder for what a restart must know.
        more: arguments for flower-supernode.
        say: told what a user wants to know.

    Raises:
        ConfigError: a file is missing, or the folder cannot be written.
        RoundError: the SuperNode ended by itself, such as one whose key the server
            does not know.
    """
    security = _security(certificates, int(node["partition-id"]))
    memory = (state / "memory").absolute()
    try:
        memory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"state: {str(state)!r} is refused: expected a folder that can be written "
            f"({error.strerror})"
        ) from error
    command = [
        program("flower-supernode"),
        *("--superlink", server),
        *security,
        *("--node-config", node_config({**node, "state-path": str(memory)})),
        # Where its own client app reaches it: another for each client of a machine.
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *more,
    ]
    say(shlex.join(command))
    supernode = subprocess.Popen(
        command, env=environment(state / "flower"), start_new_session=True
    )
    try:
        supernode.wait()
    finally:
        stop(supernode)
    raise RoundError(
        f"the SuperNode ended by itself, with code {supernode.returncode}; one whose "
        f"key the server does not know is told 'Failed to activate SuperNode'"
    )


def node_config(values: Mapping[str, int | str]) -> str:
    """Return the text of ``--node-config`` that gives these values back, whatever.

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
            raise ConfigError(
                f"certs: {str(certificates.folder)!r} is refused: expected a folder "
                f"with {path.relative_to(certificates.folder)}, as fcl certs makes it"
            )
    return [
        *("--root-certificates", str(certificates.authority)),
        *("--auth-supernode-private-key", str(key)),
    ]
