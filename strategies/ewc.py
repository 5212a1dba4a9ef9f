"""EWC: declaration and hyper-parameters; its server side is that of FedAvg.

Kirkpatrick et al., PNAS 2017, https://arxiv.org/abs/1612.00796.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class EwcParams(Params):
    """Hyper-parameters of Elastic Weight Consolidation."""

    strength: float = Field(100.0, ge=0)
    """The weight of the penalty, at least 0 (the paper's lambda)."""
    decay: float = Field(1.0, ge=0, le=1)
    """The share of the old Fisher information that a new task keeps, in [0, 1]; 1 sums
    over all tasks."""
    fisher_examples: int = Field(200, ge=1)
    """The number of training examples that estimate the Fisher information, at least
    1."""


ALGORITHM = Algorithm(
    name="ewc",
    client="clients.ewc:Ewc",
    params_type=EwcParams,
    summary="FedAvg with Elastic Weight Consolidation on the clients",
    paper="Kirkpatrick et al., PNAS 2017",
    privacy_units=("client",),
    token_labels=True,
)
