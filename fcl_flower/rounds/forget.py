"""Take out of a run what a client has contributed, as if it had never come."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import config_error
from fcl_flower.core.files import lock_folder
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.pending_requests import PendingRequests
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

REMAINS = (
    "what clients received before",
    "the accuracies in the record of the run",
    "copies of the folder",
)
"""What no server can take back."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The strategy's diagnostics of the state before and after, by name."""

    round: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def forget(folder: Path, client: int, task: int | None = None) -> Forgotten:
    """Take a client's contribution, to one task or all, out of a run's checkpoint.

    Earlier versions of the state, which still had it, are removed. A run that is
    resumed goes on with what is left.
    """
    file = folder / "config.toml"
    if not (file.is_file() and (folder / CHECKPOINT).is_dir()):
        expected = f"the folder of a run, with its config.toml and {CHECKPOINT}"
        raise config_error("folder", str(folder), expected)
    run = Built(resolve(RunConfig.read(file, "folder")))
    strategy = run.strategy()
    store = FolderStateStore(folder / CHECKPOINT)
    with lock_folder(folder, "folder"):
        saved = store.load()
        if saved is None:
            expected = "that of a run that has finished a round"
            raise config_error("folder", str(folder), expected)
        left = strategy.forget(saved.state, client, task)
        beside = dict(saved.beside)
        if "asked" in beside:  # what was sent is of the state before
            pending = PendingRequests.from_payload(beside["asked"])
            beside["asked"] = pending.without(pending.progress).to_payload()
        store.save(left, saved.round, beside)
        store.drop_earlier()
    before, after = (_described(strategy, s) for s in (saved.state, left))
    return Forgotten(saved.round, before, after)


def _described(strategy: ServerStrategy[Any], state: Payload) -> Mapping[str, float]:
    stage = TaskStage(0, 0, starts_task=False, ends_task=False)
    found = strategy.diagnostics(state, stage, {})
    return {name: value for name, value in found.items() if isinstance(value, float)}
