"""The environment of Flower's programs and of our apps."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SPEEDUPS: Final = "FCL_SPEEDUPS"
"""The variable with a module whose `take_up` is called before a server app begins. A
deployment sets it; on plain Flower it is unset."""


def no_proxy(variables: Mapping[str, str]) -> str:
    """List the hosts without an HTTP proxy, which always include this machine."""
    given = variables.get("no_proxy", variables.get("NO_PROXY", ""))
    if given.strip() == "*":
        return given
    return ",".join([*filter(None, [given]), "localhost", "127.0.0.1", "::1"])


def environment(home: Path) -> Mapping[str, str]:
    """Build the environment in which Flower's programs run.

    The programs find this Python and its packages, and keep to a separate folder. They
    neither report home nor install anything. HTTP proxies are for other machines.
    """
    return {
        **os.environ,
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": no_proxy(os.environ),
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
