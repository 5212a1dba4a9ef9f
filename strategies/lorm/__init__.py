"""LoRM: declaration and hyper-parameters.

Salami et al., ICLR 2025, https://arxiv.org/abs/2410.17961.
"""

from typing import Literal

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class LormParams(Params):
    """Hyper-parameters of LoRM; the rank is the model's."""

    contrast: Literal["task", "own"] = "task"
    """Among which classes a client's loss is: all of the ``task`` that some client has
    told of in an earlier round, or its ``own``."""


ALGORITHM = Algorithm(
    name="lorm",
    server="strategies.lorm.server:Lorm",
    client="clients.lorm.client:Lorm",
    params_type=LormParams,
    summary="a frozen transformer whose LoRA factors are merged in closed form",
    paper="Salami et al., ICLR 2025",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("lora-transformer", "lora-vit"),
    needs_single_head=True,
)
