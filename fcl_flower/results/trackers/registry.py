"""The trackers that ``run.track`` names; each loads its package when it is made."""

from collections.abc import Callable
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import extra
from fcl_flower.core.registry import Registry
from fcl_flower.results.trackers.base import MakeTracker, Tracker


def _tensorboard(config: RunConfig, folder: Path) -> Tracker:
    with extra("tensorboard", "run.track"):
        from fcl_flower.results.trackers.tensorboard import TensorBoard
    return TensorBoard(config, folder)


def _mlflow(config: RunConfig, folder: Path) -> Tracker:
    with extra("mlflow", "run.track"):
        from fcl_flower.results.trackers.mlflow import MLflow
    return MLflow(config, folder)


def _wandb(config: RunConfig, folder: Path) -> Tracker:
    with extra("wandb", "run.track"):
        from fcl_flower.results.trackers.wandb import WandB
    return WandB(config, folder)


TRACKERS: Registry[MakeTracker] = Registry(
    "run.track",
    "fcl_flower.trackers",
    Callable,  # type: ignore[arg-type]  # whatever makes one
    {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb},
)
