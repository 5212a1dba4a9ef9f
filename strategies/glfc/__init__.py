"""GLFC: declaration and hyper-parameters.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473.
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.params import MemoryParams, MemoryPolicy
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts


class GlfcParams(MemoryParams):
    """Hyper-parameters of GLFC; they are the paper's unless a text says otherwise."""

    counts = (Counts("strategy.entropy_rise", "strategy.transition", ("entropy",)),)

    memory_policy: MemoryPolicy = "herding"
    """The rule by which samples stay. Three policies keep equally many of each class:
    by herding, drawn at random (balanced), or with the probability of their leverage
    scores (leverage). By reservoir every sample stays with the same probability."""
    compensation: float = Field(0.5, ge=0)
    """The weight of the gradient compensation loss once there is an old model, at least
    0; before that it is 1 (the paper's lambda1)."""
    distillation: float = Field(0.5, ge=0)
    """The weight of the relation distillation loss, at least 0 (the paper's
    lambda2)."""
    transition: Literal["known", "entropy"] = "known"
    """The sign by which a client sees that a task begins. With known, our choice, the
    server tells it. With entropy, as printed, the mean entropy of its predictions has
    risen."""
    entropy_rise: float = Field(1.2, gt=0)
    """The rise of the entropy since the last round that begins a task, in nats, above 0
    (the paper's r_h). Where tasks have few classes it hardly ever rises so far."""
    noise: float = Field(0.1, ge=0)
    """The share of the features' standard deviation in the noise that perturbs
    prototypes, at least 0 (the paper's gamma)."""
    perturbation_steps: int = Field(50, ge=0)
    """The number of steps that perturb a prototype, at least 0; with 0 the server sees
    the sample itself."""
    search_steps: int = Field(100, ge=1)
    """The number of steps in which the server finds images from gradients, at least 1
    (our choice; the released code has 5000 of another search)."""


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
    # When a task comes again, the server has other old models and images.
    returns_to_tasks=False,
)
