"""FedSeIT: declaration and hyper-parameters.

Chaudhary et al., Findings of EMNLP 2022.
"""

from typing import Literal, TypeAlias

from pydantic import Field

from fcl_flower.algorithms.registry import Algorithm
from strategies.fedweit import FedWeitParams
from strategies.fedweit.adapter_selection import SelectionRule

CacheType: TypeAlias = Literal["float32", "float16"]


class FedSeitParams(FedWeitParams):
    """Hyper-parameters beside those of FedWeIT."""

    knowledge: SelectionRule = "previous"
    """The latest adapter of each client by default."""
    lambda2: float = Field(0.0, ge=0)
    """Weight of keeping old tasks where they were, at least 0. Where tasks of texts
    have much in common it only brakes, so that it is 0 here."""
    dls: bool = False
    """Dense layer sharing: the clients' projections W_c and W_f are averaged and handed
    out (FedSeIT+DLS, the paper's ablation)."""
    initial_attention: float = 1.0
    """Alpha of every branch at the start of a task."""
    cache: CacheType = "float32"
    """How the extremes of the documents are kept during a task; float16 halves the
    memory and rounds them to 11 bits."""
    cache_megabytes: int = Field(256, ge=0)
    """That they may take; a task that needs more computes them anew in each step."""


ALGORITHM = Algorithm(
    name="fedseit",
    server="strategies.fedseit.server:FedSeit",
    client="clients.fedseit.client:FedSeit",
    params_type=FedSeitParams,
    summary="FedWeIT for text whose foreign adapters are branches of their own",
    paper="Chaudhary et al., EMNLP Findings 2022",
    counterpart="fedweit",
    defaults={"data.datasets": "stdlib-docs"},
    privacy_units=("client",),
)
