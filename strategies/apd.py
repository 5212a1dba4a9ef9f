"""APD: declaration and hyper-parameters; the client does all the work.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432. In a federation each client
learns alone, as in the tables of FedWeIT (Yoon et al., ICML 2021).
"""

from typing import Self

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts


class ApdParams(Params):
    """Hyper-parameters of Additive Parameter Decomposition.

    Defaults are those of the authors' script for CIFAR-100-Split, unless a text says
    otherwise (github.com/jaehong31/APD).
    """

    counts = (Counts("strategy.groups strategy.gap", "strategy.consolidate_every"),)

    lambda1: float = Field(4e-4, ge=0)
    """The weight of the sparsity of adapters (the paper's tau), at least 0."""
    lambda2: float = Field(100.0, ge=0)
    """The weight of the penalty that keeps old tasks as they were, at least 0."""
    weight_decay: float = Field(1e-4, ge=0)
    """The weight of the halved squares of the task's adapters and masks, at least 0. In
    the first task the shared weights are included."""
    threshold: float = Field(4e-4, ge=0)
    """The magnitude up to which entries of adapters are dropped when a task ends, at
    least 0."""
    initial_adapter: float = Field(0.5, ge=0, le=1)
    """The multiple of the shared weights at which adapters of a new task start, in [0,
    1]. It is 1 in the authors' code. It is 1/2 in that of FedWeIT's authors, where a
    network starts with its initial weights."""
    mask_rate: float = Field(1.0, ge=0)
    """The factor on the learning rate for masks, at least 0."""
    consolidate_every: int = Field(5, ge=0)
    """The number of new tasks after which adapters are clustered (the paper's s), at
    least 0; 0 for never."""
    groups: int = Field(2, ge=1)
    """The number of clusters that each consolidation adds (the paper's k), at least
    1."""
    gap: float = Field(0.01, ge=0)
    """The largest difference of a cluster's adapters, by entry, at which the entry
    becomes one that its tasks share (the paper's beta), at least 0."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if 0 < self.consolidate_every <= self.groups:
            raise ValueError(
                f"strategy.groups: got {self.groups}, expected less than "
                f"strategy.consolidate_every ({self.consolidate_every}): else each "
                "task is a group by itself, and nothing is shared"
            )
        return self


ALGORITHM = Algorithm(
    name="apd",
    server="strategies.local:NoOpStrategy",
    client="clients.apd:Apd",
    params_type=ApdParams,
    summary="masked shared weights and sparse adapters, in clusters; no federation",
    paper="Yoon et al., ICLR 2020",
)
