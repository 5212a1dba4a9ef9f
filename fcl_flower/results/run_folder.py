"""The folder of a run: its name, its preparation, and its end."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.core.files import COMMAND_LOCK, lock_folder, make_private_folder
from fcl_flower.data.local.layout import checksum, find_tasks
from fcl_flower.results import journal
from fcl_flower.results.files import write_json

RUNS = Path("runs")
SUMMARY = "summary.json"
CHECKPOINT = "checkpoint"
"""The server's state after the last finished round."""
WORK = ".flower"
"""The folder of a simulation's own files."""
CLIENTS = f"{WORK}/clients"
"""The states of a simulation's clients, from which it is resumed."""
SMALL_STATES = 256 * 10**6
"""The bytes up to which the states of all clients are kept without a setting."""
LOCAL_DATA = "local-data.json"
"""The checksum of each client's local data, with which alone a run goes on."""


def resumable(folder: Path) -> bool:
    """Tell whether a folder holds an interrupted simulation that can be resumed."""
    return (folder / CHECKPOINT).is_dir() and (folder / CLIENTS).is_dir()


def lost_first_round(folder: Path) -> bool:
    """Tell whether a run has begun in a folder and has not finished a round."""
    begun = journal.is_journal(folder / journal.FILE)
    files = (folder / SUMMARY, folder / CHECKPOINT)
    return begun and not any(path.exists() for path in files)


def free_folder(config: RunConfig) -> Path:
    """Choose a folder for a run below ``runs/`` that does not exist yet."""
    sets = config.data.datasets.replace(",", "+").replace("/", "_").replace(":", "_")
    title = config.title.replace(" ", "-").replace("/", "_")
    parts = [title, config.scenario.name, sets, f"seed{config.run.seed}"]
    name = "-".join(part for part in parts if part)
    number, folder = 1, RUNS / name
    while folder.exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


@contextlib.contextmanager
def prepared_folder(
    config: RunConfig, folder: Path, data_root: Path, local_data: Sequence[Path] = ()
) -> Iterator[RunConfig]:
    """Remove an earlier run's files; yield the configuration with absolute paths.

    The processes of a run may have another working directory. No other command works on
    the folder before the context ends. With ``run.resume`` the clients' states stay.

    Args:
        config: configuration of the run.
        folder: existing folder of the run.
        data_root: folder of the data sets.
        local_data: folder of each client's local data.

    Raises:
        ConfigError: another run or command works on the folder, or the run has learned
            from other local data.
    """
    with lock_folder(folder, "output", COMMAND_LOCK):
        with lock_folder(folder, "output"):  # a server may outlive the command before
            if config.run.resume:
                check_local_data(folder, local_data)
            work = folder / WORK
            for part in [work / "app", work / "home"] if config.run.resume else [work]:
                shutil.rmtree(part, ignore_errors=True)
            make_private_folder(work)
            names = (SUMMARY, "diagnostics.json", "progress.json", LOCAL_DATA)
            for name in names:
                (folder / name).unlink(missing_ok=True)
            if local_data:
                learned = [_learned(path, config.scenario.tasks) for path in local_data]
                write_json(folder / LOCAL_DATA, learned)
        yield config.replace(
            output=str(folder.absolute()),
            client_state=str((folder / CLIENTS).absolute()),
            data_root=str(data_root.absolute()),
        )


def check_local_data(folder: Path, local_data: Sequence[Path]) -> None:
    """Refuse other local data than those of the run in a folder.

    Raises:
        ConfigError: a client's data differ, or cannot be read.
    """
    if not (folder / LOCAL_DATA).exists():
        return
    learned = json.loads((folder / LOCAL_DATA).read_text())
    for data, old in zip(local_data, learned, strict=False):  # others have joined
        if old["checksum"] != checksum(data, old["tasks"]):
            raise ConfigError(
                f"data: got {str(data)!r}, whose tasks are not those that the run in "
                f"{str(folder)!r} has learned; expected the same data, or another "
                "folder for the results"
            )


def _learned(data: Path, most: int) -> dict[str, str | int]:
    """Compute the number and the checksum of a client's tasks."""
    tasks = len(find_tasks(data, most))
    return {"tasks": tasks, "checksum": checksum(data, tasks)}


def clients_bytes(folder: Path) -> int:
    """Count the bytes of the clients' states in a folder."""
    paths = (folder / CLIENTS).rglob("*")
    return sum(path.stat().st_size for path in paths if path.is_file())


def close_folder(folder: Path, *, keep_clients: str) -> dict[str, Any]:
    """Remove the files that only a running run needs; return the summary.

    Args:
        folder: folder of the run.
        keep_clients: ``true``, ``false``, or ``auto`` to keep the clients' states if
            they take at most `SMALL_STATES` bytes.

    Raises:
        RoundError: there is no summary.
    """
    summary = folder / SUMMARY
    if not summary.exists():
        raise RoundError(
            f"the run did not finish; the reason stands in {folder / 'flower.log'}"
        )
    small = keep_clients == "auto" and clients_bytes(folder) <= SMALL_STATES
    if keep_clients != "true" and not small:
        shutil.rmtree(folder / WORK, ignore_errors=True)
    content: dict[str, Any] = json.loads(summary.read_text())
    return content
