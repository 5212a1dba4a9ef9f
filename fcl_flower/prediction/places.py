"""The folders of a model's versions: in a client's state, or in a run's folder."""

from pathlib import Path

from fcl_flower.core.errors import config_error, unknown_name
from fcl_flower.results.run_folder import CLIENTS
from fcl_flower.rounds.versions import MODELS

MEMORY = "memory"
"""The folder within a client's state for the runs that the client remembers."""


def is_run(folder: Path) -> bool:
    """Tell the folder of a run from that of a client's state."""
    return (folder / "config.toml").is_file()


def run_models(folder: Path, client: int | None) -> Path | None:
    """Find the versions in a run's folder; None for a simulation that has none.

    The versions are the server's, or those of a simulated client with data of its own.
    """
    own = folder / CLIENTS / f"client-{client}" / MODELS
    for models in (own, folder / MODELS):
        if models.is_dir():
            return models
    return None


def client_models(state: Path, run: str | None, client: int | None) -> Path:
    """Find the versions in the folder of a client's state.

    Args:
        state: the folder of ``fcl client --state``.
        run: name of a run; None for the run that was written last.
        client: number of a client, needed if several keep their states there.

    Raises:
        ConfigError: there are no versions, or several clients have some.
    """
    folders = [*(state / MEMORY).glob(f"*/client-*/{MODELS}")]
    if not folders:
        expected = (
            "the folder of a run, or the --state folder of fcl client, after its "
        )
        raise config_error("folder", str(state), f"{expected}first round")
    runs = sorted({path.parents[1].name for path in folders})
    if run is not None and run not in runs:
        raise unknown_name("run", run, runs)
    folders = [path for path in folders if run in (None, path.parents[1].name)]
    numbers = sorted({path.parent.name.removeprefix("client-") for path in folders})
    if client is not None:
        if str(client) not in numbers:
            raise config_error("client", client, f"one of {', '.join(numbers)}")
        folders = [path for path in folders if path.parent.name == f"client-{client}"]
    elif len(numbers) > 1:
        raise config_error("client", client, f"one of {', '.join(numbers)}")
    return max(folders, key=lambda path: (path.stat().st_mtime_ns, str(path)))


def models_in(folder: Path, run: str | None, client: int | None) -> Path:
    """Find the versions in a folder of either kind.

    Raises:
        ConfigError: there are none, as in a simulation's folder, which has its end
            only.
    """
    if not is_run(folder):
        return client_models(folder, run, client)
    if models := run_models(folder, client):
        return models
    expected = "that of a client's state or of a server: a simulation has one version, "
    raise config_error("folder", str(folder), expected + "its end")
