"""Where the numbers of a run go: trackers of other projects, which ``run.track`` names.

Another package declares one of its own as an entry point. Each loads its package when
it is made.
"""

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import require_extra
from fcl_flower.core.registry import Registry


class Tracker(ABC):
    """Takes the numbers of one run to another program.

    It is made at the start of a run, and again where the run is resumed: then it hears
    all from the first round.
    """

    @abstractmethod
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Take finite numbers of a round, which is never below the one before.

        Names are such as ``accuracy``, ``loss`` and ``client/3/accuracy``.
        """

    @abstractmethod
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        """Take the measures of the whole run, and its page, when it has finished."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all that is open, also after a run that failed."""


MakeTracker: TypeAlias = Callable[[RunConfig, Path], Tracker]
"""From a run's configuration and its folder to what tracks it."""


PROJECT = "fcl-flower"
"""Name of the project, or experiment, at a tracker."""
BATCH = 100
"""Parameters that MLflow takes at once."""


class TensorBoard(Tracker):
    """Scalars by round; configuration and final measures as texts.

    They go to event files in the run's folder: ``tensorboard --logdir FOLDER``.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin anew in ``FOLDER/tensorboard``: a resumed run tells all again."""
        with require_extra("tensorboard", "run.track"):
            from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        self._writer = SummaryWriter(str(place))
        self._writer.add_text("config", f"```toml\n{config.to_toml()}\n```")

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    @override
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        rows = [f"| {name} | {value} |" for name, value in measures.items()]
        table = "\n".join(["| measure | value |", "| --- | --- |", *rows])
        self._writer.add_text("summary", f"{table}\n\nReport: {report.absolute()}")

    @override
    def close(self) -> None:
        self._writer.close()


class MLflow(Tracker):
    """Settings as parameters, scalars by round as metrics, the page as an artefact.

    A run of the experiment ``fcl-flower``. It goes to the server or the file that
    ``MLFLOW_TRACKING_URI`` names, and without that to ``mlflow.db`` beside the run's
    folder, which the runs of a study share.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Create a run; no other in this process hears of it."""
        with require_extra("mlflow", "run.track"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param

        self._metric = Metric
        beside = folder.absolute().parent
        address = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(address or f"sqlite:///{beside / 'mlflow.db'}")
        known = self._client.get_experiment_by_name(PROJECT)
        if known is None:
            files = None if address else (beside / "mlartifacts").as_uri()
            experiment = self._client.create_experiment(PROJECT, files)
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
        metrics = [
            self._metric(name, value, now, step) for name, value in scalars.items()
        ]
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


class WandB(Tracker):
    """Settings as configuration, scalars by round, the page as an artefact.

    A run of the project ``fcl-flower``. Nothing leaves the machine before
    ``wandb sync FOLDER/wandb/offline-run-...``, or with ``WANDB_MODE=online``, the
    package's own setting.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin a run in ``FOLDER/wandb``."""
        with require_extra("wandb", "run.track"):
            import wandb

        self._artifact = wandb.Artifact
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
        page = self._artifact("report", "report")
        page.add_file(str(report))
        self._run.log_artifact(page)
        self._failed = 0

    @override
    def close(self) -> None:
        self._run.finish(exit_code=self._failed)


TRACKERS: Registry[MakeTracker] = Registry(
    "run.track",
    "fcl_flower.trackers",
    Callable,  # type: ignore[arg-type]  # whatever makes one
    {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB},
)
