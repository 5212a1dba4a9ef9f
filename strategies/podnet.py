"""PODNet: declaration and hyper-parameters; its server side is that of FedAvg.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513.
"""

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import Algorithm


class PodNetParams(MemoryParams):
    """Hyper-parameters of PODNet; defaults are the authors' for CIFAR-100.

    But for ``scale``, with which they start at 1: SGD with a rate of 0.1 soon raises
    it, Adam's small steps do not, and the loss is then nothing beside the distillation.
    """

    memory_policy: MemoryPolicy = "herding"
    """Which samples stay; the paper's are chosen by herding."""
    spatial_strength: float = Field(3.0, ge=0)
    """Weight of the distillation of maps, POD-spatial, at least 0 (the paper's
    lambda_c); without effect on bodies that have no 2-D convolutions."""
    flat_strength: float = Field(1.0, ge=0)
    """Weight of the distillation of features, POD-flat, at least 0 (lambda_f)."""
    proxies: int = Field(10, ge=1)
    """Proxies of each class in the classifier, at least 1 (K)."""
    scale: float = Field(10.0, gt=0)
    """What similarities are multiplied by at the start, above 0 (eta, which is
    learned)."""
    margin: float = Field(0.6, ge=0)
    """By how much a sample shall be more similar to its class than to all others
    together, at least 0 (delta)."""
    finetune_epochs: int = Field(20, ge=0)
    """Passes over the kept samples in which the proxies are trained after each task but
    the first, at least 0."""


ALGORITHM = Algorithm(
    name="podnet",
    server="strategies.fedavg:FedAvg",
    client="clients.podnet:PodNet",
    params_type=PodNetParams,
    summary="FedAvg with distillation of pooled maps and several proxies a class",
    paper="Douillard et al., ECCV 2020",
    defaults={"scenario.name": "class-incremental"},
    privacy_units=("client",),
    needs_single_head=True,
)
