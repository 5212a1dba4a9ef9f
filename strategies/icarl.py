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
    """Exemplars that a client keeps of all its classes together, at least 1."""
    memory_policy: MemoryPolicy = "herding"
    """Which samples are exemplars; the paper's are chosen by herding."""
    classifier: Literal["nearest-mean", "head"] = "nearest-mean"
    """What predicts: the nearest mean of a client's own exemplars, so that it knows no
    class that it has never had, or the head that clients share (hybrid1)."""
    distillation: bool = True
    """Let the old model say what old classes are; without it labels do (hybrid2)."""


ALGORITHM = class_incremental(
    name="icarl",
    client="clients.icarl:Icarl",
    params_type=IcarlParams,
    summary="FedAvg with exemplars, sigmoid distillation and nearest-mean predictions",
    paper="Rebuffi et al., CVPR 2017",
)
