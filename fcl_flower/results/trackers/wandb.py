"""Weights & Biases: a run of the project ``fcl-flower``, offline unless asked.

Nothing leaves the machine before ``wandb sync FOLDER/wandb/offline-run-...``, or with
``WANDB_MODE=online``, the package's own setting.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.trackers.base import Tracker

PROJECT = "fcl-flower"


class WandB(Tracker):
    """Settings as configuration, scalars by round, the page as an artefact."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin a run in ``FOLDER/wandb``."""
        self._run = wandb.init(
            project=PROJECT,
            name=f"{config.title} seed {config.run.seed}",
            config=config.flat(),
            dir=folder.absolute(),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._failed = 1

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log(dict(scalars), step=step)

    @override
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        self._run.summary.update({f"final/{n}": v for n, v in measures.items()})
        page = wandb.Artifact("report", "report")
        page.add_file(str(report))
        self._run.log_artifact(page)
        self._failed = 0

    @override
    def close(self) -> None:
        self._run.finish(exit_code=self._failed)
