"""FedSSI: declaration and hyper-parameters; its server side is that of FedAvg.

Li et al., ICML 2025, https://arxiv.org/abs/2412.13779.
"""

from typing import Self

from pydantic import Field, model_validator

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


def pull(locality: float) -> float:
    """Return q = (1 - lambda) / (2 lambda): how strongly a surrogate is held."""
    return (1 - locality) / (2 * locality)


class FedSsiParams(Params):
    """Hyper-parameters of FedSSI; the defaults are ours."""

    strength: float = Field(100.0, ge=0)
    """Weight of the penalty, at least 0 (the paper's alpha)."""
    locality: float = Field(0.5, gt=0, le=1)
    """What a surrogate follows, in (0, 1] (the paper's lambda): 1 the client's own data
    alone, near 0 the global model."""
    damping: float = Field(0.1, gt=0)
    """What the squared way of a weight is increased by, above 0 (xi)."""
    surrogate_rate: float = Field(0.1, gt=0)
    """Learning rate of the surrogate, above 0."""
    surrogate_epochs: int = Field(5, ge=1)
    """Passes over a task's training data when it ends, at least 1."""

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        if self.surrogate_rate * pull(self.locality) > 1:
            raise ValueError(
                f"strategy.surrogate_rate: got {self.surrogate_rate}, expected at most "
                f"{1 / pull(self.locality):g} with strategy.locality {self.locality}: "
                "a longer step goes beyond the model that it is pulled to"
            )
        return self


ALGORITHM = Algorithm(
    name="fedssi",
    server="strategies.fedavg:FedAvg",
    client="clients.fedssi:FedSsi",
    params_type=FedSsiParams,
    summary="FedAvg with Synaptic Intelligence measured on personalised models",
    paper="Li et al., ICML 2025",
    privacy_units=("client",),
)
