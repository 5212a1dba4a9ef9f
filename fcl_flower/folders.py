"""Where the results of a run go when nobody says where."""

from pathlib import Path

from fcl_flower.config import RunConfig

RUNS = Path("runs")


def free_folder(config: RunConfig) -> Path:
    """Return a folder below ``runs/`` with a speaking name that does not exist yet."""
    sets = config.dataset.replace(",", "+").replace("/", "_").replace(":", "_")
    title = config.title.replace(" ", "-").replace("/", "_")
    name = f"{title}-{config.scenario}-{sets}-seed{config.seed}"
    number, folder = 1, RUNS / name
    while folder.exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder
