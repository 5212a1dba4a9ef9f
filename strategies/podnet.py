"""PODNet: declaration and hyper-parameters; its server side is that of FedAvg.

Douillard et al., ECCV 2020, https://arxiv.org/abs/2004.13513.
"""

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import Algorithm


class PodNetParams(MemoryParams):
    """Hyper-parameters of PODNet; defaults are the authors' for CIFAR-100.

    Only ``scale`` differs, with which the authors start at 1. SGD with a rate of 0.1
    soon raises it. Adam's small steps do not, and the loss is then tiny beside the
    distillation.
    """

    memory_policy: MemoryPolicy = "herding"
    """The rule by which samples stay; the paper has herding."""
    spatial_strength: float = Field(3.0, ge=0)
    """The weight of the distillation of maps, POD-spatial, at least 0 (the paper's
    lambda_c). It has no effect on bodies without 2-D convolutions."""
    flat_strength: float = Field(1.0, ge=0)
    """The weight of the distillation of features, POD-flat, at least 0 (lambda_f)."""
    proxies: int = Field(10, ge=1)
    """The number of proxies of each class in the classifier, at least 1 (K)."""
    scale: float = Field(10.0, gt=0)
    """The factor on similarities at the start, above 0 (eta, which is learned)."""
    margin: float = Field(0.6, ge=0)
    """The margin by which a sample must be more similar to its class than to all others
    together, at least 0 (delta)."""
    finetune_epochs: int = Field(20, ge=0)
    """The number of passes over the kept samples that train the proxies after each task
    but the first, at least 0."""


ALGORITHM = Algorithm(
    name="podnet",
    client="clients.podnet:PodNet",
    params_type=PodNetParams,
    summary="FedAvg with distillation of pooled maps and several proxies a class",
    paper="Douillard et al., ECCV 2020",
    defaults={"scenario.name": "class-incremental"},
    privacy_units=("client",),
    needs_single_head=True,
)
