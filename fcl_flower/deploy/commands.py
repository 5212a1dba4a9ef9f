"""The words of Flower's programs: options, paths, and sentences of their logs."""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any

from fcl_flower.core.errors import MESSAGE_FAILED, RoundError, config_error
from fcl_flower.flower_app.environment import environment

SUPERLINK = "fcl"
"""The name under which Flower's commands know the SuperLink."""

# ---- paths of the SuperLink's one address

START_RUN = "/v1/control/start-run"
"""The path at which runs are started; the reverse proxy has nothing there."""
FLEET = re.compile(r"/v1/fleet/[a-z-]+")
"""The paths that clients call."""
ACTIVATE = "/v1/fleet/activate-node"
"""The path at which a client joins."""
ACTIVATION_FAILED = 2004
"""The SuperLink's code for a client that may not join."""
ACTIVATION_REFUSED = "Failed to activate SuperNode."

# ---- clocks

MAX_AHEAD, MAX_BEHIND = 5.0, 305.0
"""Seconds by which the clock of a client whose calls are let in may differ at most."""

# ---- sentences

STARTED_RUN = re.compile(r"Successfully started run (\d+)")
"""The line of ``flwr run --stream``, which has no other form while it runs."""
KEY_IN_USE = "Public key already in use"
COMPLETED = "finished:completed"
FAILED = "finished:failed"
"""The status of a run that came to its end."""


class SuperNodeEvent(Enum):
    """An event that a line of a SuperNode's log tells."""

    LET_IN = auto()
    REFUSED = auto()
    CUT_OFF = auto()
    BACK = auto()
    EXPECTED_NOTICE = auto()
    FAILED = auto()
    ANSWERED = auto()
    OTHER = auto()


SUPERNODE_SIGNS = {
    "SuperNode ID:": SuperNodeEvent.LET_IN,
    "Failed to activate SuperNode": SuperNodeEvent.REFUSED,
    "Connection attempt failed, retrying": SuperNodeEvent.CUT_OFF,
    "Connection successful after": SuperNodeEvent.BACK,
    "SuperExec authentication is experimental": SuperNodeEvent.EXPECTED_NOTICE,
    "Sent successfully": SuperNodeEvent.ANSWERED,
}
"""Signs in Flower's lines, and the events that they tell."""


def read_supernode_log(line: str) -> SuperNodeEvent:
    """Return the event that a line of a SuperNode's log tells."""
    if MESSAGE_FAILED in line:  # our own client app's
        return SuperNodeEvent.FAILED
    found = (event for sign, event in SUPERNODE_SIGNS.items() if sign in line)
    return next(found, SuperNodeEvent.OTHER)


# ---- programs and their options


def program(name: str) -> str:
    """Find a program that was installed beside this interpreter."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def write_superlink(home: Path, address: str, root_certificate: Path | None) -> None:
    """Tell Flower's commands with this ``FLWR_HOME`` where the SuperLink is."""
    from fcl_flower.config.parsing import toml

    home.mkdir(parents=True, exist_ok=True)
    security = (
        "insecure = true"
        if root_certificate is None
        else f"root-certificates = {toml(str(root_certificate.absolute()))}"
    )
    (home / "config.toml").write_text(
        f"[superlink]\ndefault = {toml(SUPERLINK)}\n\n[superlink.{SUPERLINK}]\n"
        f"address = {toml(address)}\n{security}\n"
    )


UNREACHED = "Connection to the SuperLink is unavailable"
"""The words of Flower's commands where no SuperLink answers."""
ANSWER_SECONDS = 120.0
"""Seconds for a command of Flower's: a busy machine starts one slowly."""


def flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """Run a command of Flower's to its end; read its answer.

    Raises:
        RoundError: the command has failed, with Flower's message, or hangs.
    """
    try:
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            env=environment(home),
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise RoundError(f"no answer in {ANSWER_SECONDS:.0f} s") from error
    # Flower prints more than the JSON.
    text = done.stdout[done.stdout.find("{") :]
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        found = {}
    if done.returncode or not found.get("success"):
        answer = found.get("error-message") or (done.stdout + done.stderr)
        raise RoundError(" ".join(str(answer).split()))
    return found


def _refuse_taken(
    command: Sequence[str], taken: Sequence[str], expected: str
) -> argparse.Namespace:
    """Refuse options that this package gives itself; return the command's address."""
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--host", "--port", *taken):
        parser.add_argument(option)
    found = parser.parse_known_args(list(command[1:]))[0]
    for option in taken:
        value = vars(found)[option.removeprefix("--").replace("-", "_")]
        if value is not None:
            raise config_error(option, value, expected)
    return found


def server_program(
    command: Sequence[str], objects: Path, speedups: Collection[str]
) -> list[str]:
    """Let a command of flower-superlink run with speed-ups, or as it is without any.

    The command does not start flower-superexec, which the server watches, too. Large
    objects are kept in the folder ``objects``.
    """
    taken = ("--isolation", "--superexec-auth-secret-file")
    _refuse_taken(command, taken, "none: fcl server starts flower-superexec itself")
    plain = [*command, "--isolation", "process"]
    if not speedups:
        return plain
    program = [sys.executable, "-P", "-m", f"{__package__}.speedups.superlink"]
    return [*program, ",".join(speedups), str(objects), *plain]


TAKEN = ("--isolation", "--superexec-auth-secret-file", "--ssl-certfile")
"""Options of flower-supernode that say how the client app runs."""


def client_program(command: Sequence[str], speedups: Collection[str]) -> list[str]:
    """Let a command of flower-supernode run with speed-ups, or as it is without any.

    With ``resident`` a worker stays from one message to the next. Of a repeated option
    the last one holds, as for Flower.
    """
    if not speedups:
        return list(command)
    program = [sys.executable, "-P", "-m", f"{__package__}.speedups.supernode"]
    program.append(",".join(speedups))
    if "resident" not in speedups:
        return [*program, "", *command]
    expected = "none beside a worker that stays: give --speedups off before --"
    found = _refuse_taken(command, TAKEN, expected)
    # A program that listens at every address of a machine is reached at its own.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(found.host, found.host)
    address = f"[{host}]:{found.port}" if ":" in host else f"{host}:{found.port}"
    return [*program, address, *command, "--isolation", "process"]


def node_config(values: Mapping[str, int | str]) -> str:
    """Write the text of ``--node-config`` that Flower reads as these values.

    Flower cuts it at spaces and equals signs outside of quotes, knows no escaped quote
    while it does so, and reads each piece as TOML, which knows quotes by number.
    """
    return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())


def _quoted(value: int | str) -> str:
    # Imported late, as it loads pydantic, which reading logs does not need.
    from fcl_flower.config.parsing import toml

    if isinstance(value, int):
        return str(value)
    return '"' + toml(value)[1:-1].replace('\\"', "\\u0022") + '"'
