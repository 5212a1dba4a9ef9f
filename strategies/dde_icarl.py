"""DDE on iCaRL: declaration and hyper-parameters; its server side is that of FedAvg.

Hu et al., CVPR 2021, https://arxiv.org/abs/2103.01737.
"""

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from strategies import icarl
from strategies.icarl import IcarlParams


class DdeIcarlParams(IcarlParams):
    """Hyper-parameters of iCaRL with the distillation of causal effects.

    The authors' code has ten neighbours, 0.9 and 0.5. It then learns alpha on balanced
    samples; here alpha is a setting.
    """

    neighbours: int = Field(10, ge=0)
    """The most samples of new classes, nearest in the old model's features, that answer
    together with a sample (the paper's K). 0 leaves the colliding effect out."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """The share of the running sum of mean features that a step keeps, in [0, 1)
    (mu)."""
    removal: float = Field(0.5, ge=0, le=1)
    """The share of a feature's part along that sum that predictions leave out, in [0,
    1] (alpha); 0 leaves the momentum effect in."""

    @model_validator(mode="after")
    def _neighbours_have_features(self) -> Self:
        if self.neighbours and not self.distillation:
            raise ValueError(
                "strategy.distillation: got false, expected true with "
                f"strategy.neighbours {self.neighbours}, which are those of the old "
                "model"
            )
        return self


ALGORITHM = replace(
    icarl.ALGORITHM,
    name="dde-icarl",
    client="clients.dde_icarl:DdeIcarl",
    params_type=DdeIcarlParams,
    summary="iCaRL that learns with neighbours of old and predicts without momentum",
    paper="Hu et al., CVPR 2021",
)
