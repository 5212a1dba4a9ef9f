"""Federated continual learning on Flower.

The names below are the public interface; each is loaded when it is used first, so that
importing the package loads neither torch nor Flower.
"""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from fcl_flower import algorithms, models
    from fcl_flower import data as datasets
    from fcl_flower.algorithms.base import ClientLearner, Params, ServerStrategy, Turn
    from fcl_flower.algorithms.registry import Algorithm
    from fcl_flower.api import compare, simulate
    from fcl_flower.config.run_config import RunConfig
    from fcl_flower.core.errors import (
        ConfigError,
        ContractError,
        FclError,
        RoundError,
        WireError,
    )
    from fcl_flower.core.types import SparseArray, TaskStage, Update
    from fcl_flower.data import scenarios
    from fcl_flower.data.examples import TaskData
    from fcl_flower.flower_app.strategy import flower_strategy
    from fcl_flower.prediction.model import load
    from fcl_flower.results import measures as metrics
    from fcl_flower.results.result import Comparison, Result

__version__ = "0.3.0"

__all__ = [
    "Algorithm",
    "ClientLearner",
    "Comparison",
    "ConfigError",
    "ContractError",
    "FclError",
    "Params",
    "Result",
    "RoundError",
    "RunConfig",
    "ServerStrategy",
    "SparseArray",
    "TaskData",
    "TaskStage",
    "Turn",
    "Update",
    "WireError",
    "__version__",
    "algorithms",
    "compare",
    "datasets",
    "flower_strategy",
    "load",
    "metrics",
    "models",
    "scenarios",
    "simulate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "api": "simulate compare",
        "flower_app.strategy": "flower_strategy",
        "prediction.model": "load",
        "results.result": "Result Comparison",
        "config.run_config": "RunConfig",
        "algorithms.registry": "Algorithm",
        "algorithms.base": "ServerStrategy ClientLearner Params Turn",
        "core.types": "SparseArray TaskStage Update",
        "data.examples": "TaskData",
        "core.errors": "FclError ConfigError ContractError WireError RoundError",
    },
    {
        "algorithms": "algorithms",
        "datasets": "data",
        "models": "models",
        "metrics": "results.measures",
        "scenarios": "data.scenarios",
    },
)
