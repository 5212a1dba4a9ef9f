"""FedProx with Stable SGD: declaration; a baseline of FedWeIT's tables.

Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196, tables 1 and 2
("FedProx-SSGD", "FedProx-Stable-SGD").
"""

from dataclasses import replace

from strategies import stable_sgd
from strategies.fedprox import FedProxParams
from strategies.stable_sgd import StableSgdParams


class FedProxSsgdParams(FedProxParams, StableSgdParams):
    """Hyper-parameters of both methods."""


ALGORITHM = replace(
    stable_sgd.ALGORITHM,
    name="fedprox-ssgd",
    client="clients.fedprox_ssgd:FedProxSsgd",
    params_type=FedProxSsgdParams,
    summary="Stable SGD with a proximal term towards the global model",
    paper="Yoon et al., ICML 2021",
)
