"""MLflow: a run of the experiment ``fcl-flower``.

It goes to the server or the file that ``MLFLOW_TRACKING_URI`` names, and without that
to ``mlflow.db`` beside the run's folder, which the runs of a study share.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.trackers.base import Tracker

EXPERIMENT = "fcl-flower"
BATCH = 100
"""Parameters that MLflow takes at once."""


class MLflow(Tracker):
    """Settings as parameters, scalars by round as metrics, the page as an artefact."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Create a run; no other in this process hears of it."""
        beside = folder.absolute().parent
        address = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(address or f"sqlite:///{beside / 'mlflow.db'}")
        known = self._client.get_experiment_by_name(EXPERIMENT)
        if known is None:
            files = None if address else (beside / "mlartifacts").as_uri()
            experiment = self._client.create_experiment(EXPERIMENT, files)
        else:
            experiment = known.experiment_id
        name = f"{config.title} seed {config.run.seed}"
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        self._state = "FAILED"
        params = [Param(key, str(value)) for key, value in config.flat().items()]
        for start in range(0, len(params), BATCH):
            some = params[start : start + BATCH]
            self._client.log_batch(self._run, params=some)

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in scalars.items()]
        self._client.log_batch(self._run, metrics=metrics)

    @override
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        for name, value in measures.items():
            self._client.log_metric(self._run, f"final/{name}", value)
        self._client.log_artifact(self._run, str(report))
        self._state = "FINISHED"

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run, self._state)
