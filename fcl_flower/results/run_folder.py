"""The folder of a run: where it is when nobody says where, and what it shows."""

from pathlib import Path

from fcl_flower.config.run_config import RunConfig

RUNS = Path("runs")
CHECKPOINT = "checkpoint"
"""The server's state after the last finished round."""
WORK = ".flower"
"""What a simulation needs while it runs, and to go on: there lies clients' memory."""
CLIENTS = f"{WORK}/clients"


def resumable(folder: Path) -> bool:
    """Return whether a simulation was ended in ``folder`` that can go on."""
    return (folder / CHECKPOINT).is_dir() and (folder / CLIENTS).is_dir()


def free_folder(config: RunConfig) -> Path:
    """Return a folder below ``runs/`` with a speaking name that does not exist yet."""
    sets = config.data.datasets.replace(",", "+").replace("/", "_").replace(":", "_")
    title = config.title.replace(" ", "-").replace("/", "_")
    parts = [title, config.scenario.name, sets, f"seed{config.run.seed}"]
    name = "-".join(part for part in parts if part)
    number, folder = 1, RUNS / name
    while folder.exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder
