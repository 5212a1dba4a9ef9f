"""DER++: declaration and hyper-parameters; its server side is that of FedAvg.

Buzzega et al., NeurIPS 2020, https://arxiv.org/abs/2004.07211.
"""

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import class_incremental


class DerParams(MemoryParams):
    """Hyper-parameters of DER++; experience replay alone (FedER) has ``alpha`` 0."""

    memory_policy: MemoryPolicy = "reservoir"
    """The rule by which samples stay; the paper has a reservoir."""
    alpha: float = Field(0.3, ge=0)
    """The weight of the stored logits, at least 0. The defaults of both weights are
    those of the authors' library (Mammoth) for CIFAR-100 with 500 samples."""
    beta: float = Field(0.5, ge=0)
    """The weight of the labels of stored samples, at least 0; 0 is DER."""
    replay_batch: int = Field(32, ge=1)
    """The number of stored samples in a step, for each of the two terms, at least 1."""


ALGORITHM = class_incremental(
    name="der",
    client="clients.der:Der",
    params_type=DerParams,
    summary="FedAvg whose clients repeat stored samples and what they answered to them",
    paper="Buzzega et al., NeurIPS 2020",
)
