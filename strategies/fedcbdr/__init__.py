"""FedCBDR: declaration and hyper-parameters.

Qi et al., 2025, https://arxiv.org/abs/2507.07712.
"""

from collections.abc import Mapping

from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from strategies.replay import small_memory


class FedCbdrParams(Params):
    """Hyper-parameters of class-wise balancing data replay.

    The paper chooses temperatures from 0.8 to 0.9 and 1.1 to 1.2, weights from 1.1 to
    1.4 and 0.7 to 0.9, by data set; of these the defaults, ours, are the mildest.
    """

    memory_samples: int = Field(200, ge=0)
    """Samples of all tasks that a client keeps, in the mean over clients: one with more
    samples of a class keeps more of it; 0 for none. The default is ours."""
    old_weight: float = Field(1.1, ge=0)
    """Weight of the loss of stored samples, at least 0."""
    new_weight: float = Field(0.9, ge=0)
    """Weight of the loss of new samples, at least 0."""

    @override
    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        return small_memory(self.memory_samples * clients, classes)


ALGORITHM = Algorithm(
    name="fedcbdr",
    server="strategies.fedcbdr.server:FedCbdr",
    client="clients.fedcbdr:FedCbdr",
    params_type=FedCbdrParams,
    summary="FedAvg with replay whose samples are balanced and chosen over all clients",
    paper="Qi et al., 2025",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("transformer",),
    needs_single_head=True,
)
