"""Whether differential privacy can hold in a run; nothing is promised that cannot."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcl_flower.algorithms.base import ServerQueries, ServerStrategy
from fcl_flower.core.errors import refuse
from fcl_flower.setup.resolved_run import ResolvedRun


def check_privacy(run: ResolvedRun, strategy: ServerStrategy[Any]) -> None:
    """Refuse a privacy unit that this run cannot hide.

    Args:
        run: resolved.
        strategy: the server side of its algorithm.

    Raises:
        ConfigError: the algorithm sends what noise does not cover, or nothing at all.
    """
    config = run.config
    unit, name = config.privacy.unit, config.strategy.name
    if unit == "none":
        return
    alone = config.strategy.local_only or not run.algorithm.federated
    for wrong, why in (
        (alone, f"{config.title}, whose clients send nothing that they learn"),
        (unit not in run.algorithm.privacy_units, f"{name}, {_UNFIT[unit]}"),
        (
            isinstance(strategy, ServerQueries) and strategy.asks,
            f"{name} whose server asks clients about their data (strategy.knowledge)",
        ),
    ):
        if wrong:
            raise refuse("privacy.unit", unit, f"'none' for {why}")


def check_examples_apart(run: ResolvedRun, network: nn.Module) -> None:
    """Refuse examples as the privacy unit where a network mixes those of a batch.

    Raises:
        ConfigError: it normalises by the statistics of a batch.
    """
    mixing = any(isinstance(part, _BatchNorm) for part in network.modules())
    if run.config.privacy.unit == "example" and mixing:
        raise refuse(
            "privacy.unit",
            "example",
            f"another for model {run.config.model.name}, whose batch normalisation "
            "gives no example a gradient of its own",
        )


_UNFIT = {
    "client": "whose updates tell more of a client's data than noise on differences "
    "covers",
    "example": "which uses examples by more than the gradients of single ones",
}
"""Why an algorithm without a privacy unit has not got it."""
