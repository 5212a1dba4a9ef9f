"""GLFC: declaration and hyper-parameters.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473.
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import Algorithm


class GlfcParams(MemoryParams):
    """Hyper-parameters of GLFC; what is not said to be ours is the paper's."""

    memory_policy: MemoryPolicy = "herding"
    """Which samples stay: as many of each class, by herding, drawn at random (balanced)
    or with the probability of their leverage scores; or any of all, each with the same
    probability (reservoir)."""
    compensation: float = Field(0.5, ge=0)
    """Weight of the gradient compensation loss once there is an old model, at least 0;
    before that it is 1 (the paper's lambda1)."""
    distillation: float = Field(0.5, ge=0)
    """Weight of the relation distillation loss, at least 0 (the paper's lambda2)."""
    transition: Literal["known", "entropy"] = "known"
    """How a client finds out that a task begins: it is told (known, ours), or the mean
    entropy of its predictions has risen (entropy, as printed)."""
    entropy_rise: float = Field(1.2, gt=0)
    """By how much it must have risen since the last round, in nats, above 0 (the
    paper's r_h). Where tasks have few classes it hardly ever does."""
    noise: float = Field(0.1, ge=0)
    """Share of the features' standard deviation in the noise by which prototypes are
    perturbed, at least 0 (the paper's gamma)."""
    perturbation_steps: int = Field(50, ge=0)
    """Steps by which a prototype is perturbed, at least 0; without any the server sees
    the sample itself."""
    search_steps: int = Field(100, ge=1)
    """Steps in which the server finds images from gradients, at least 1 (ours; the
    released code has 5000 of another search)."""


ALGORITHM = Algorithm(
    name="glfc",
    server="strategies.glfc.server:Glfc",
    client="clients.glfc:Glfc",
    params_type=GlfcParams,
    summary="replay with balanced gradients, taught by the best old model of a proxy",
    paper="Dong et al., CVPR 2022",
    defaults={"scenario.name": "class-incremental"},
    trainer="strategies.glfc.trainer:ProxyTrainer",
    needs_single_head=True,
    # By then the server has other old models and images.
    returns_to_tasks=False,
)
