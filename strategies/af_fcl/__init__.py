"""AF-FCL: declaration and hyper-parameters.

Wuerkaixi et al., ICLR 2024, https://arxiv.org/abs/2502.14205; the defaults are those of
the authors' command for CIFAR-100 (https://github.com/zaocan666/AF-FCL).
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class AfFclParams(Params):
    """Hyper-parameters of accurate forgetting."""

    replay: float = Field(0.5, ge=0)
    """Weight of the features that are drawn from the flow, at least 0; 0 draws none."""
    exploration: float = Field(0.1, ge=0, le=1)
    """How much of that weight stays if the flow finds the client's own features
    improbable, in [0, 1] (theta); with 1 all of it."""
    compared: Literal["latents", "features"] = "latents"
    """What of a drawn sample is compared with the latents of the client's own: its
    ``latents``, as the paper's equation 8 is told, or its ``features``, as in the
    authors' code, although these are in another space."""
    flow_memory: float = Field(0.1, ge=0)
    """Weight in the flow's loss of what the old flow draws of old classes, at least 0;
    0 draws nothing."""
    feature_distillation: float = Field(0.1, ge=0)
    """Weight of the squared distance to the old model's features, at least 0 (in the
    code a product: 0.2 times 0.5)."""
    output_distillation: float = Field(0.02, ge=0)
    """Weight of the divergence from the old model's answers, at least 0 (in the code
    0.2 times 0.1)."""
    temperature: float = Field(2.0, gt=0)
    """Of this divergence, above 0."""
    flow_rate: float = Field(5.0, gt=0)
    """Learning rate of the flow as a multiple of the network's, above 0."""
    flow_layers: int = Field(4, ge=4)
    """Coupling layers of the flow, at least 4, as the code asks for: fewer may leave
    some features as they are."""
    flow_hidden: int = Field(512, ge=1)
    """Width of the network in each of them, at least 1."""


ALGORITHM = Algorithm(
    name="af-fcl",
    server="strategies.af_fcl.server:AfFcl",
    client="clients.af_fcl.client:AfFcl",
    params_type=AfFclParams,
    summary="FedAvg that replays features of a flow, as far as they suit the client",
    paper="Wuerkaixi et al., ICLR 2024",
    defaults={"scenario.name": "class-incremental"},
    privacy_units=("client",),
)
