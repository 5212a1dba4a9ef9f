"""APD: declaration and hyper-parameters; all of it happens on the client.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432. In a federation it is a client
that learns alone, as in the tables of FedWeIT (Yoon et al., ICML 2021).
"""

from typing import Self

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class ApdParams(Params):
    """Hyper-parameters of Additive Parameter Decomposition.

    Defaults are those of the authors' script for CIFAR-100-Split, unless a text says
    otherwise (github.com/jaehong31/APD).
    """

    lambda1: float = Field(4e-4, ge=0)
    """Weight of the sparsity of adapters (the paper's tau), at least 0."""
    lambda2: float = Field(100.0, ge=0)
    """Weight of keeping old tasks where they were, at least 0."""
    weight_decay: float = Field(1e-4, ge=0)
    """Weight of the halved squares of the task's adapters and masks, in the first task
    of the shared weights too, at least 0."""
    threshold: float = Field(4e-4, ge=0)
    """Entries of adapters up to this magnitude are dropped when a task ends, at least
    0."""
    initial_adapter: float = Field(0.5, ge=0, le=1)
    """Adapters of a new task start as this multiple of the shared weights, in [0, 1]:
    1 in the authors' code, 1/2 in that of FedWeIT's authors, with which a network
    starts with the weights of its initialisation."""
    mask_rate: float = Field(1.0, ge=0)
    """Factor on the learning rate for masks, at least 0."""
    consolidate_every: int = Field(5, ge=0)
    """New tasks after which adapters are clustered (the paper's s), at least 0; 0 for
    never."""
    groups: int = Field(2, ge=1)
    """Clusters that each consolidation adds (the paper's k), at least 1."""
    gap: float = Field(0.01, ge=0)
    """Entries of a cluster's adapters that lie within this become one that its tasks
    share (the paper's beta), at least 0."""

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
