"""Trackers of other projects, which ``run.track`` names, get the numbers of a run.

A tracker is a function of a run's configuration and folder. It returns a context in
which the run goes on; what the context yields is called with numbers and their round.
Another package declares one of its own as an entry point.
"""

import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import PluginWarning, require_extra
from fcl_flower.core.registry import Registry
from fcl_flower.core.types import Evaluation
from fcl_flower.results.events import Evaluated, Event, Finished, Trained
from fcl_flower.results.tables import markdown

Log: TypeAlias = Callable[[Mapping[str, float], int | None], None]
"""Takes finite numbers of a round, which is never below the one before.

Names are such as ``accuracy``, ``loss`` and ``client/3/accuracy``. At the end of a run
it takes the measures of the whole run; the round is None then, and the run's folder has
``report.html``.
"""
Tracker: TypeAlias = Callable[[RunConfig, Path], AbstractContextManager[Log]]
"""It is called at the start of a run, and again where the run is resumed: then it hears
all from the first round. Its context ends by the error that has ended the run, if any.
"""

PROJECT = "fcl-flower"
"""Name of the project, or experiment, at a tracker."""
BATCH = 100
"""Parameters that MLflow takes at once."""
REPORT = "report.html"


@contextmanager
def tensorboard(config: RunConfig, folder: Path) -> Iterator[Log]:
    """Write scalars by round; configuration and final measures as texts.

    They go to event files: ``tensorboard --logdir FOLDER``. A resumed run, which tells
    all again, begins them anew.
    """
    with require_extra("tensorboard", "run.track"):
        from torch.utils.tensorboard import SummaryWriter

    place = folder / "tensorboard"
    shutil.rmtree(place, ignore_errors=True)
    with SummaryWriter(str(place)) as writer:
        writer.add_text("config", f"```toml\n{config.to_toml()}\n```")

        def log(scalars: Mapping[str, float], step: int | None) -> None:
            if step is None:
                rows = [(name, str(value)) for name, value in scalars.items()]
                table = markdown(("measure", "value"), rows)
                report = (folder / REPORT).absolute()
                writer.add_text("summary", f"{table}\n\nReport: {report}")
                return
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        yield log


@contextmanager
def mlflow(config: RunConfig, folder: Path) -> Iterator[Log]:
    """Send settings as parameters, scalars as metrics, the page as an artefact.

    They are a run of the experiment ``fcl-flower``, of which no other in this process
    hears. It goes to the server or the file that ``MLFLOW_TRACKING_URI`` names, and
    without that to ``mlflow.db`` beside the run's folder, which the runs of a study
    share.
    """
    with require_extra("mlflow", "run.track"):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

    beside = folder.absolute().parent
    address = os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(address or f"sqlite:///{beside / 'mlflow.db'}")
    known = client.get_experiment_by_name(PROJECT)
    if known is None:
        files = None if address else (beside / "mlartifacts").as_uri()
        experiment = client.create_experiment(PROJECT, files)
    else:
        experiment = known.experiment_id
    name = f"{config.title} seed {config.run.seed}"
    run = client.create_run(experiment, run_name=name).info.run_id
    params = [Param(key, str(value)) for key, value in config.flat().items()]
    for start in range(0, len(params), BATCH):
        client.log_batch(run, params=params[start : start + BATCH])
    state = "FAILED"

    def log(scalars: Mapping[str, float], step: int | None) -> None:
        nonlocal state
        if step is None:
            for name, value in scalars.items():
                client.log_metric(run, f"final/{name}", value)
            client.log_artifact(run, str(folder / REPORT))
            state = "FINISHED"
            return
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in scalars.items()]
        client.log_batch(run, metrics=metrics)

    try:
        yield log
    finally:
        client.set_terminated(run, state)


@contextmanager
def wandb(config: RunConfig, folder: Path) -> Iterator[Log]:
    """Send settings as configuration, scalars by round, the page as an artefact.

    They are a run of the project ``fcl-flower`` in ``FOLDER/wandb``. Nothing leaves the
    machine before ``wandb sync FOLDER/wandb/offline-run-...``, or with
    ``WANDB_MODE=online``, the package's own setting.
    """
    with require_extra("wandb", "run.track"):
        import wandb

    run = wandb.init(
        project=PROJECT,
        name=f"{config.title} seed {config.run.seed}",
        config=config.flat(),
        dir=folder.absolute(),
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off"),
    )
    failed = 1

    def log(scalars: Mapping[str, float], step: int | None) -> None:
        nonlocal failed
        if step is not None:
            run.log(dict(scalars), step=step)
            return
        run.summary.update({f"final/{n}": v for n, v in scalars.items()})
        page = wandb.Artifact("report", "report")
        page.add_file(str(folder / REPORT))
        run.log_artifact(page)
        failed = 0

    try:
        yield log
    finally:
        run.finish(exit_code=failed)


TRACKERS: Registry[Tracker] = Registry(
    "run.track",
    "fcl_flower.trackers",
    Callable,  # type: ignore[arg-type]  # whatever makes one
    {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb},
)


# ---- what they are told

OF_ROUND = (
    *("loss", "valid_loss", "valid_accuracy"),
    *("nominal_bytes_up", "nominal_bytes_down", "seconds"),
)
"""Keys of a round's line that are numbers as they stand there."""

OF_CLIENT = ("loss", "valid_loss", "valid_accuracy")
"""The clients' metrics that trackers get; names of a client's own go nowhere."""

OF_RUN = (
    *("average_accuracy", "balanced_accuracy", "honest_accuracy", "forgetting"),
    *("backward_transfer", "learning_accuracy", "average_incremental_accuracy"),
    *("bytes_up", "bytes_down", "model_bytes", "seconds"),
)
"""Keys of a summary."""


@contextmanager
def tracking(
    trackers: Mapping[str, AbstractContextManager[Log]],
) -> Iterator[Callable[[Event], None]]:
    """Open trackers, and yield what hands the numbers of each event to all.

    One that fails is left out from then on, with a warning: a run of hours does not end
    because somebody else's server does.
    """
    logs = {name: tracker.__enter__() for name, tracker in trackers.items()}

    def tell(call: Callable[[str], object]) -> None:
        for name in [*logs]:
            try:
                call(name)
            except Exception as error:  # somebody else's package: whatever it raises
                del logs[name]
                said = f"run.track: {name} is left out from now on: {error!r}"
                warnings.warn(said, PluginWarning, stacklevel=2)

    def hear(event: Event) -> None:
        if isinstance(event, Trained):
            scalars, step = round_scalars(event), event.round
        elif isinstance(event, Evaluated):
            scalars, step = accuracy_scalars(event.scores), event.round
        elif isinstance(event, Finished):
            measures = {key: getattr(event.summary, key) for key in OF_RUN}
            scalars, step = _known(measures), None
        else:
            return
        tell(lambda name: logs[name](scalars, step))

    try:
        yield hear
    except BaseException:
        error = sys.exc_info()
        tell(lambda name: trackers[name].__exit__(*error))
        raise
    tell(lambda name: trackers[name].__exit__(None, None, None))


def round_scalars(event: Trained) -> dict[str, float]:
    """Name the numbers of a finished round."""
    line = event.line()
    found = {key: getattr(line, key) for key in OF_ROUND} | {
        "bytes_up": event.traffic.up.total(),
        "bytes_down": event.traffic.down.total(),
        "clients": len(event.replies),
        "failed": len(event.failed),
        "task": event.task,
    }
    for client, scalars in event.replies.items():
        found |= {f"client/{client}/{key}": scalars.get(key) for key in OF_CLIENT}
    return _known(found)


def accuracy_scalars(scores: Mapping[int, Evaluation]) -> dict[str, float]:
    """Name the test accuracies after a round: each client's mean over its tasks."""
    means = {
        client: sum(found.accuracy) / len(found.accuracy)
        for client, found in scores.items()
        if found.accuracy
    }
    found = {f"client/{client}/accuracy": value for client, value in means.items()}
    return {"accuracy": sum(means.values()) / len(means), **found} if means else {}


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
