"""IDBR: declaration and hyper-parameters; its server side is that of FedAvg.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489.
"""

from pydantic import Field

from fcl_flower.algorithms.params import BudgetParams
from fcl_flower.algorithms.registry import class_incremental


class IdbrParams(BudgetParams):
    """Hyper-parameters of IDBR; the weights are those of the released code."""

    generic: float = Field(0.5, ge=0)
    """The weight of the squared distance in the generic space, at least 0."""
    specific: float = Field(0.5, ge=0)
    """The weight of the squared distance in the task-specific space, at least 0."""
    new_weight: float = Field(0.5, ge=0)
    """The weight of both distances for samples of the present task, at least 0."""
    replayed_weight: float = Field(5.0, ge=0)
    """The weight of both distances for replayed samples, at least 0."""
    order: float = Field(1.0, ge=0)
    """The weight of the loss of telling a text from its halves swapped, at least 0."""
    task: float = Field(1.0, ge=0)
    """The weight of the loss of telling tasks apart, at least 0."""


ALGORITHM = class_incremental(
    name="idbr",
    client="clients.idbr:Idbr",
    params_type=IdbrParams,
    summary="replay of texts with a space for all tasks and one that tells them apart",
    paper="Huang et al., NAACL 2021",
    models=("disentangled-transformer",),
)
