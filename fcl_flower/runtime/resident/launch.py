"""How a SuperNode is started: mended, and with a worker beside it.

What runs there is named and not imported: who starts it needs nothing of Flower.
"""

import argparse
import sys
from collections.abc import Sequence

from fcl_flower.core.errors import refuse

STOPPED_RUNS, NODE = f"{__package__}.stopped_runs", f"{__package__}.node"
TAKEN = ("--isolation", "--superexec-auth-secret-file", "--ssl-certfile")
"""Options of flower-supernode: who runs the client app, and how the two speak."""


def mended(command: Sequence[str]) -> list[str]:
    """Return the command that runs a SuperNode which no stopped run leaves deaf.

    Args:
        command: of flower-supernode, by its path.
    """
    return [sys.executable, "-P", "-m", STOPPED_RUNS, *command]


def with_worker(command: Sequence[str]) -> list[str]:
    """Return the command that runs a SuperNode and its worker.

    Args:
        command: of flower-supernode, with ``--host`` and ``--port``; of an option that
            is there twice the last one holds, as for Flower.

    Raises:
        ConfigError: it has an option that leaves no place for a worker.
    """
    parser = argparse.ArgumentParser(add_help=False)
    for option in ("--host", "--port", *TAKEN):
        parser.add_argument(option)
    found = vars(parser.parse_known_args(list(command[1:]))[0])
    for option in TAKEN:
        value = found[option.removeprefix("--").replace("-", "_")]
        if value is not None:
            expected = "none beside a worker that stays: give --no-resident before --"
            raise refuse(option, value, expected)
    # What listens at every address of a machine is reached at its own.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(found["host"], found["host"])
    address = f"[{host}]:{found['port']}" if ":" in host else f"{host}:{found['port']}"
    isolated = (*command, "--isolation", "process")
    return [sys.executable, "-P", "-m", NODE, address, *isolated]
