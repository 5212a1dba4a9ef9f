"""BiC: the mean of the clients' networks and of the corrections of their heads.

Wu et al., CVPR 2019, https://arxiv.org/abs/1905.13260.
"""

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.params import MemoryParams
from fcl_flower.algorithms.registry import class_incremental
from fcl_flower.core.types import Arrays, Payload
from strategies.fedavg import FedAvg


class BicParams(MemoryParams):
    """Hyper-parameters of BiC; temperature and the fraction held out are the paper's.

    The second stage's epochs and rate are our choice.
    """

    temperature: float = Field(2.0, gt=0)
    """The number that divides logits in the distillation, above 0 (T)."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """The fraction of a class's samples in the memory, at least one sample, that only
    the second stage uses; in (0, 1). It uses as many samples of each new class."""
    bias_epochs: int = Field(100, ge=0)
    """The number of passes of the second stage over the samples held out; 0 for no
    second stage."""
    bias_rate: float = Field(0.01, gt=0)
    """The learning rate of the second stage, above 0."""


ALGORITHM = class_incremental(
    name="bic",
    server="strategies.bic:Bic",
    client="clients.bic:Bic",
    params_type=BicParams,
    summary="FedAvg with replay whose head is corrected for its bias to new classes",
    paper="Wu et al., CVPR 2019",
)


class Bic(FedAvg):
    """A strategy with one global model, and a scale and a shift for each logit."""

    groups = {**FedAvg.groups, "bias": "model"}

    @override
    def init(self, model: Arrays) -> Payload:
        scale = np.ones(self.context.model.classes, np.float32)
        return {"base": model, "bias": {"scale": scale, "shift": 0 * scale}}
