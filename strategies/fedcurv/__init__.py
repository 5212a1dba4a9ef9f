"""FedCurv: declaration and hyper-parameters.

Shoham et al., 2019, https://arxiv.org/abs/1910.07796.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class FedCurvParams(Params):
    """Hyper-parameters of FedCurv."""

    strength: float = Field(1.0, ge=0)
    """Weight of the penalty, at least 0 (the paper's lambda); 0 is FedAvg. The default
    is the largest of FedWeIT's experiments (Yoon et al., ICML 2021, appendix A)."""
    fisher_examples: int = Field(200, ge=1)
    """Training examples from which the Fisher information is estimated in a round, at
    least 1."""


ALGORITHM = Algorithm(
    name="fedcurv",
    server="strategies.fedcurv.server:FedCurv",
    client="clients.fedcurv:FedCurv",
    params_type=FedCurvParams,
    summary="FedAvg whose clients hold to what the other clients' data need",
    paper="Shoham et al., 2019",
)
