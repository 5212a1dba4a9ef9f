"""FOT: declaration and hyper-parameters.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class FotParams(Params):
    """Hyper-parameters of federated orthogonal training."""

    energy: float = Field(0.87, gt=0, lt=1)
    """Share of a layer's inputs, by their squares, that the first task's subspace has
    to hold, in (0, 1) (the paper's epsilon). What it holds no later update changes. The
    released code has 0.87 for CIFAR-100, 0.95 for 5-Datasets, 0.94 to 0.96 for MNIST
    and 0.9 for an ImageNet subset."""
    energy_step: float = Field(0.001, ge=0, lt=1)
    """By how much ``energy`` grows with each later task, in [0, 1); above 1 it stays at
    1. The default is the released code's for CIFAR-100; it has 0 for MNIST."""
    sketch_width: float = Field(1.0, gt=0, le=10)
    """Columns of a layer's sketch, as a multiple of its inputs, in (0, 10]. The
    released code has 1, but 5 for the linear layers of its CIFAR-100 network."""


ALGORITHM = Algorithm(
    name="fot",
    server="strategies.fot.server:Fot",
    client="clients.fot.client:Fot",
    params_type=FotParams,
    summary="FedAvg whose updates leave alone what old tasks' inputs span, by layer",
    paper="Bakman et al., ICLR 2024",
)
