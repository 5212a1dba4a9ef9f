"""FedProx: declaration and hyper-parameters; its server side is that of FedAvg.

Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class FedProxParams(Params):
    """Hyper-parameters of FedProx."""

    mu: float = Field(0.005, ge=0)
    """The weight of the proximal term, at least 0; 0 is FedAvg. The default is that of
    FedWeIT's experiments (Yoon et al., ICML 2021, appendix A)."""


ALGORITHM = Algorithm(
    name="fedprox",
    client="clients.fedprox:FedProx",
    params_type=FedProxParams,
    summary="FedAvg with a proximal term towards the global model",
    paper="Li et al., MLSys 2020",
    privacy_units=("client", "example"),
    token_labels=True,
)
