"""Trackers of other projects (``run.track``), which get the numbers of a run.

A tracker is a function of a run's configuration and folder. It returns a context, in
which the run goes on. The context yields a function that takes numbers and their round.
Other packages declare trackers as entry points.
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
from fcl_flower.results.tables import MEASURES, markdown, value

Log: TypeAlias = Callable[[Mapping[str, float], int | None], None]
"""A function that takes finite numbers by name, and their round.

Names are such as ``accuracy``, ``loss`` and ``client/3/accuracy``. Rounds never fall.
The last call has the measures of the whole run and None as round. By then the run's
folder has ``report.html``.
"""
Tracker: TypeAlias = Callable[[RunConfig, Path], AbstractContextManager[Log]]
"""A tracker, called when a run starts or is resumed.

A resumed run passes the numbers of all rounds again. The context ends with the error
that has ended the run, if any.
"""

PROJECT = "fcl-flower"
"""The name of the project, or experiment, at a tracker."""
BATCH = 100
"""The number of parameters that MLflow takes at once."""
REPORT = "report.html"


@contextmanager
def tensorboard(config: RunConfig, folder: Path) -> Iterator[Log]:
    """Write scalars by round, and configuration and final measures as texts.

    ``tensorboard --logdir FOLDER`` shows them. A resumed run writes them again.
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
    """Send settings as parameters, scalars as metrics, and the page as an artefact.

    They are a run of the experiment ``fcl-flower``, apart from the process's own MLflow
    run. They go where ``MLFLOW_TRACKING_URI`` says, or else to ``mlflow.db`` beside the
    run's folder, which the runs of a study share.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it reports its use
    with require_extra("mlflow", "run.track"):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

    beside = folder.absolute().parent
    address = os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(address or f"sqlite:///{beside / 'mlflow.db'}")
    if present := client.get_experiment_by_name(PROJECT):
        experiment = present.experiment_id
    else:
        files = None if address else (beside / "mlartifacts").as_uri()
        experiment = client.create_experiment(PROJECT, files)
    name = f"{config.title} seed {config.run.seed}"
    run = client.create_run(experiment, run_name=name).info.run_id
    params = [Param(key, str(value)) for key, value in config.flat().items()]
    for start in range(0, len(params), BATCH):
        client.log_batch(run, params=params[start : start + BATCH])

    def log(scalars: Mapping[str, float], step: int | None) -> None:
        start, now = "final/" if step is None else "", int(time.time() * 1000)
        metrics = [Metric(start + n, v, now, step or 0) for n, v in scalars.items()]
        client.log_batch(run, metrics=metrics)
        if step is None:
            client.log_artifact(run, str(folder / REPORT))

    try:
        yield log
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run)


@contextmanager
def wandb(config: RunConfig, folder: Path) -> Iterator[Log]:
    """Send settings as configuration, scalars by round, and the page as an artefact.

    They are a run of the project ``fcl-flower`` in ``FOLDER/wandb``. They leave the
    machine with ``wandb sync FOLDER/wandb/offline-run-...``, or at once with the
    package's own setting ``WANDB_MODE=online``.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # even offline
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

    def log(scalars: Mapping[str, float], step: int | None) -> None:
        if step is not None:
            run.log(dict(scalars), step=step)
            return
        run.summary.update({f"final/{n}": v for n, v in scalars.items()})
        page = wandb.Artifact("report", "report")
        page.add_file(str(folder / REPORT))
        run.log_artifact(page)

    try:
        yield log
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish()


TRACKERS: Registry[Tracker] = Registry(
    "run.track",
    "fcl_flower.trackers",
    Callable,  # type: ignore[arg-type]
    {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb},
)


# ---- their numbers

OF_CLIENT = ("loss", "valid_loss", "valid_accuracy")
"""The metrics of a client for trackers; other names of a client are left out."""


@contextmanager
def tracking(
    trackers: Mapping[str, AbstractContextManager[Log]],
) -> Iterator[Callable[[Event], None]]:
    """Open trackers, and yield a listener that passes the numbers of events to them.

    A tracker that fails is left out from then on, with a warning, so that the run goes
    on.
    """
    logs = {name: tracker.__enter__() for name, tracker in trackers.items()}

    def tell(call: Callable[[str], object]) -> None:
        for name in [*logs]:
            try:
                call(name)
            except Exception as error:  # a foreign package may raise any
                del logs[name]
                message = f"run.track: {name} is left out from now on: {error!r}"
                warnings.warn(message, PluginWarning, stacklevel=2)

    def listen(event: Event) -> None:
        if isinstance(event, Trained):
            scalars, step = round_scalars(event), event.round
        elif isinstance(event, Evaluated):
            scalars, step = accuracy_scalars(event.scores), event.round
        elif isinstance(event, Finished):
            content = event.summary.content()
            measures = {m.key: value(content, m) for m in MEASURES}
            scalars, step = _finite(measures), None
        else:
            return
        tell(lambda name: logs[name](scalars, step))

    try:
        yield listen
    except BaseException:
        error = sys.exc_info()
        tell(lambda name: trackers[name].__exit__(*error))
        raise
    tell(lambda name: trackers[name].__exit__(None, None, None))


def round_scalars(event: Trained) -> dict[str, float]:
    """Name the numbers of a finished round."""
    line = event.line()
    values: dict[str, float | None] = {
        **{key: v for key, v in line.items() if isinstance(v, int | float)},
        "bytes_up": event.traffic.up.total(),
        "bytes_down": event.traffic.down.total(),
        "clients": len(event.replies),
        "failed": len(event.failed),
    }
    for client, scalars in event.replies.items():
        values |= {f"client/{client}/{key}": scalars.get(key) for key in OF_CLIENT}
    return _finite(values)


def accuracy_scalars(scores: Mapping[int, Evaluation]) -> dict[str, float]:
    """Name the test accuracies after a round: each client's mean over its tasks."""
    means = {
        client: sum(evaluation.accuracy) / len(evaluation.accuracy)
        for client, evaluation in scores.items()
        if evaluation.accuracy
    }
    if not means:
        return {}
    by_client = {f"client/{client}/accuracy": mean for client, mean in means.items()}
    return {"accuracy": sum(means.values()) / len(means), **by_client}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
