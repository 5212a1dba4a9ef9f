"""TARGET: declaration and hyper-parameters.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937.
"""

from pydantic import Field

from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.training.synthesis.params import SynthesisParams


class TargetParams(SynthesisParams):
    """Hyper-parameters of TARGET."""

    alpha: float = Field(25.0, ge=0)
    """Weight of the distillation on the server's samples, at least 0; that of the
    authors' code. 0 is FedAvg on the new classes alone."""
    temperature: float = Field(2.0, gt=0)
    """Of this distillation, above 0; that of the authors' code."""


ALGORITHM = Algorithm(
    name="target",
    server="strategies.target.server:Target",
    client="clients.target:Target",
    params_type=TargetParams,
    summary="the server makes samples of old classes from its model; clients distil",
    paper="Zhang et al., ICCV 2023",
    defaults={"scenario.name": "class-incremental"},
    trainer="fcl_flower.training.synthesis.trainer:SampleTrainer",
    privacy_units=("client",),
)
