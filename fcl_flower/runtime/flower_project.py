"""What Flower's commands are given: an app to run, a SuperLink, an environment."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from fcl_flower import __version__
from fcl_flower.config.attack import refuse_attack
from fcl_flower.config.parsing import toml
from fcl_flower.config.run_config import RunConfig

SUPERLINK = "fcl"
"""The name under which Flower's commands know the SuperLink."""


OURS = "fcl_flower.federation.server_app:app", "fcl_flower.federation.client_app:app"


def write_app(folder: Path, config: RunConfig, apps: tuple[str, str] = OURS) -> None:
    """Make ``folder`` a Flower app that runs ``config``.

    It holds no code: every machine runs the one that is installed there.

    Args:
        folder: not there yet.
        config: of the run.
        apps: the app of the server and that of the clients, each as module:name.

    Raises:
        ConfigError: the run has hostile clients.
    """
    refuse_attack(config)
    folder.mkdir(parents=True)
    server, client = apps
    settings = config.to_toml("tool.flwr.app.config.")
    (folder / "pyproject.toml").write_text(f"""[project]
name = "fcl-run"
version = "{__version__}"
description = "One run of fcl-flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fcl"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"

{settings}""")


def write_superlink(home: Path, address: str, root_certificate: Path | None) -> None:
    """Tell Flower's commands with this ``FLWR_HOME`` where the SuperLink is.

    Args:
        home: the ``FLWR_HOME``; made if it is not there.
        address: HOST:PORT.
        root_certificate: what proves that it is the SuperLink; None without TLS.
    """
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


def environment(home: Path) -> Mapping[str, str]:
    """Return the environment in which Flower's programs run.

    They find this Python and these packages, keep to a folder of their own, and
    neither report home nor install anything.
    """
    return {
        **os.environ,
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
