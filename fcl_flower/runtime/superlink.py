"""The server of a federation: Flower's SuperLink, behind a gate, with known clients."""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.runtime.certificates import Certificates
from fcl_flower.runtime.flower_project import SUPERLINK, environment, write_superlink
from fcl_flower.runtime.processes import await_port, program, stop
from fcl_flower.runtime.reverse_proxy import ServerFiles, run_proxy

LOOK_SECONDS = 1.0


class Addresses(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    control_port: int

    @property
    def control(self) -> str:
        """What starts runs and registers clients; this machine alone reaches it."""
        return f"127.0.0.1:{self.control_port}"


def run_superlink(
    certificates: Certificates | None,
    state: Path,
    addresses: Addresses,
    more: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Run the server of a federation until it is told to end.

    Args:
        certificates: of the server, with the public keys of the clients; None for a
            server without TLS, which takes anybody for a client.
        state: folder for what a restart must know.
        addresses: where clients, and where runs come in.
        more: arguments for flower-superlink.
        say: told what a user wants to know.

    Raises:
        ConfigError: a certificate is missing, or a folder or an address cannot be had.
        RoundError: the SuperLink did not start, or ended by itself.
    """
    files = None if certificates is None else _server_files(certificates)
    home = state / "flower"
    try:
        state.mkdir(parents=True, exist_ok=True)
        write_superlink(
            home, addresses.control, certificates and certificates.authority
        )
    except OSError as error:
        raise ConfigError(
            f"state: {str(state)!r} is refused: expected a folder that can be written "
            f"({error.strerror})"
        ) from error
    command = [
        program("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(addresses.control_port)),
        *("--database", str((state / "superlink.db").absolute())),
        *_security(files),
        *more,
    ]
    say(shlex.join(command))
    with run_proxy(addresses.host, addresses.port, addresses.control, files):
        # A session of its own: an interrupt at the terminal is ours to pass on.
        superlink = subprocess.Popen(
            command, env=environment(home), start_new_session=True
        )
        try:
            await_port(superlink, addresses.control_port)
            say(
                f"clients reach this server at {addresses.host}:{addresses.port}, "
                f"fcl run at {addresses.control} from this machine"
            )
            _attend(superlink, certificates, home, say)
        finally:
            stop(superlink)
    raise RoundError(f"the SuperLink ended by itself, with code {superlink.returncode}")


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
            raise ConfigError(
                f"certs: {str(certificates.folder)!r} is refused: expected a folder "
                f"with {path.name}, as fcl certs makes it"
            )
    return files


def _attend(
    superlink: subprocess.Popen[bytes],
    certificates: Certificates | None,
    home: Path,
    say: Callable[[str], None],
) -> None:
    """Make each client known whose public key lies there, or is put there later."""
    seen: set[Path] = set()
    while superlink.poll() is None:
        if certificates is not None:
            keys = set(certificates.clients.glob("*.pub")) - seen
            for key in sorted(keys):
                say(_register(key, home))
            seen |= keys
        time.sleep(LOOK_SECONDS)


def _register(key: Path, home: Path) -> str:
    """Make a client known to the SuperLink; return what came of it."""
    done = subprocess.run(
        [program("flwr"), "supernode", "register", str(key), SUPERLINK],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join((done.stdout + done.stderr).split())
    if done.returncode == 0:
        return f"registered {key.name}"
    if "already in use" in said:
        return f"registered {key.name} before"
    return f"could not register {key.name}: {said}"
