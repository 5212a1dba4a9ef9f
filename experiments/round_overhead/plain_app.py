"""The Flower app of `plain`: its folder, for ``flwr run``."""

from pathlib import Path

from fcl_flower.config.run_config import RunConfig


def write_plain_app(folder: Path, config: RunConfig) -> None:
    """Make a folder the Flower app that runs ``config`` by Flower's own FedAvg.

    It holds no code: `plain` has to be where Python looks for modules.
    """
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f"""[project]
name = "plain"
version = "1.0.0"
description = "FedAvg as Flower has it"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fcl"

[tool.flwr.app.components]
serverapp = "plain:server_app"
clientapp = "plain:client_app"

{config.to_toml("tool.flwr.app.config.")}""")
