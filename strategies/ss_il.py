"""SS-IL: declaration and hyper-parameters; its server side is that of FedAvg.

Ahn et al., ICCV 2021, https://arxiv.org/abs/2003.13947.
"""

from pydantic import Field

from fcl_flower.algorithms.params import DistillationParams, MemoryParams
from fcl_flower.algorithms.registry import class_incremental


class SsIlParams(MemoryParams, DistillationParams):
    """Hyper-parameters of SS-IL; strength, temperature and ratio are the paper's."""

    replay_ratio: float = Field(0.25, gt=0, le=1)
    """The number of samples of the memory in a step, as a multiple of the new ones, in
    (0, 1]; the paper has 32 beside 128."""


ALGORITHM = class_incremental(
    name="ss-il",
    client="clients.ss_il:SsIl",
    params_type=SsIlParams,
    summary="FedAvg with replay, a softmax for new classes and one for old, by task",
    paper="Ahn et al., ICCV 2021",
)
