"""FedProx with Elastic Weight Consolidation: declaration; a baseline of FedWeIT.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, table 2 ("FedProx-EWC").
"""

from dataclasses import replace

from strategies import ewc
from strategies.ewc import EwcParams
from strategies.fedprox import FedProxParams


class FedProxEwcParams(FedProxParams, EwcParams):
    """Hyper-parameters of both methods."""


ALGORITHM = replace(
    ewc.ALGORITHM,
    name="fedprox-ewc",
    client="clients.fedprox_ewc:FedProxEwc",
    params_type=FedProxEwcParams,
    summary="Elastic Weight Consolidation with a proximal term on the clients",
    paper="Yoon et al., ICML 2021",
)
