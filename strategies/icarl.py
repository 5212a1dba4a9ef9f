"""iCaRL: declaration and hyper-parameters; its server side is that of FedAvg.

Rebuffi et al., CVPR 2017, https://arxiv.org/abs/1611.07725.
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import class_incremental


class IcarlParams(MemoryParams):
    """Hyper-parameters of iCaRL; those of the paper's ablations are the last two."""

    memory_samples: int = Field(200, ge=1)
    """The most exemplars that a client keeps of all its classes together, at least
    1."""
    memory_policy: MemoryPolicy = "herding"
    """The rule by which samples become exemplars; the paper has herding."""
    classifier: Literal["nearest-mean", "head"] = "nearest-mean"
    """The classifier. With nearest-mean, the nearest mean of a client's own exemplars
    predicts, so that the client knows no class that it has never had. With head, the
    shared head predicts (hybrid1)."""
    distillation: bool = True
    """Whether the old model teaches old classes; otherwise labels do (hybrid2)."""


ALGORITHM = class_incremental(
    name="icarl",
    client="clients.icarl:Icarl",
    params_type=IcarlParams,
    summary="FedAvg with exemplars, sigmoid distillation and nearest-mean predictions",
    paper="Rebuffi et al., CVPR 2017",
)
