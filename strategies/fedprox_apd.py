"""FedProx-APD: the shared weights of APD's tasks are averaged, and pulled back.

It is a baseline of FedWeIT (Yoon et al., ICML 2021, https://arxiv.org/abs/2003.03196,
tables 1 to 3): APD (Yoon et al., ICLR 2020) with sigma from the server, and FedProx'
proximal term (Li et al., MLSys 2020). Masks, adapters, biases and heads stay on the
client.
"""

from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.types import Arrays, Payload
from strategies.apd import ApdParams
from strategies.fedavg import FedAvg
from strategies.fedweit.maths import decomposed, require_weights


class FedProxApdParams(ApdParams):
    """Hyper-parameters of APD, and the weight of the proximal term."""

    mu: float = Field(0.005, ge=0)
    """The weight of the proximal term over the shared weights, at least 0. The default
    is that of FedWeIT's experiments (appendix A)."""


ALGORITHM = Algorithm(
    name="fedprox-apd",
    server="strategies.fedprox_apd:SharedWeights",
    client="clients.fedprox_apd:FedProxApd",
    params_type=FedProxApdParams,
    summary="APD whose shared weights are averaged, with a proximal term",
    paper="Yoon et al., ICML 2021",
    counterpart="apd",
    privacy_units=("client",),
)


class SharedWeights(FedAvg):
    """A strategy that averages the decomposed weights alone.

    All other tensors stay on the client.
    """

    @override
    def init(self, model: Arrays) -> Payload:
        base = decomposed(model)
        require_weights(base, "APD")
        return {"base": base}
